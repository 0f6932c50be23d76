# SPDX-License-Identifier: Apache-2.0
"""Counts the flows of every node, and tracks which nodes do not answer, and why."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.relay_streams import RELAY
from ebpflb.kubectl.streams import Lines, NodeStreams, Streams, StreamState
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.model.flow import LostFlows, read_flow

_LONGEST_REASON = 300


@dataclass(slots=True)
class NodeFeed:
    """state: connecting, following, silent (`why`). lost: flows dropped by the rate limit."""

    node: str
    state: str = "connecting"
    why: str = ""
    flows: int = 0
    lost: int = 0
    unreadable: int = 0


class Following:
    """One thread reads the streams of all nodes, from `start()` to `stop()`.

    What concerns no node, as flows that the relay itself has lost, counts as of RELAY.
    """

    def __init__(
        self,
        traffic: EdgeTraffic,
        source: Callable[[], Mapping[str, Lines]] | NodeStreams,
        **periods: float,
    ) -> None:
        """`source`: what finds the nodes, and then `periods`: see Streams; or streams that tell."""
        self._traffic = traffic
        self._feeds: dict[str, NodeFeed] = {}
        self._trouble = ""
        self._finds_nodes = callable(source)
        self._streams = (
            Streams(partial(self._look, source), **periods) if callable(source) else source
        )

    def start(self) -> None:
        """EbpflbError if there is nothing to follow."""
        self._streams.start()
        threading.Thread(target=self._take, name="ebpflb-follow", daemon=True).start()

    def stop(self) -> None:
        """Stop; streams are not restarted."""
        self._streams.stop()

    def nodes(self) -> list[dict[str, Any]]:
        """As the page gets them."""
        return [asdict(feed) for _, feed in sorted(self._feeds.items())]

    @property
    def trouble(self) -> str:
        """Why looking for new nodes fails."""
        return self._trouble

    def _look(self, find: Callable[[], Mapping[str, Lines]]) -> Mapping[str, Lines]:
        try:
            found = find()
        except EbpflbError as error:
            self._trouble = _one_line(error)
            raise
        self._trouble = ""
        self._feeds = {node: self._feeds.get(node) or NodeFeed(node) for node in found}
        return found

    def _take(self) -> None:
        for node, what in self._streams:
            if node == RELAY and isinstance(what, StreamState):
                self._note_relay(what)
            elif feed := self._feed(node):
                if isinstance(what, str):
                    self._read(feed, what)
                else:
                    feed.state = "following" if what.runs else "silent"
                    feed.why = _one_line(what.why)

    def _feed(self, node: str) -> NodeFeed | None:
        """None if the node is gone."""
        if node not in self._feeds and not self._finds_nodes:
            # Not changed in place: another thread may be reading it.
            self._feeds = {**self._feeds, node: NodeFeed(node, _first_state(node))}
        return self._feeds.get(node)

    def _note_relay(self, state: StreamState) -> None:
        """While it is silent, no node is followed; once it is back, it tells which are."""
        self._trouble = "" if state.runs else f"{RELAY}: {_one_line(state.why)}"
        for feed in self._feeds.values():
            feed.state = _first_state(feed.node) if state.runs else "silent"
            feed.why = self._trouble

    def _read(self, feed: NodeFeed, line: str) -> None:
        try:
            found = read_flow(line)
            if isinstance(found, LostFlows):
                feed.lost += found.lost
                return
            found.node = feed.node
            self._traffic.add(found)
            feed.flows += 1
        except ValueError:
            feed.unreadable += 1


def _first_state(node: str) -> str:
    """While the relay runs, until it tells of the node."""
    return "following" if node == RELAY else "connecting"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]

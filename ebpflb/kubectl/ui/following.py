# SPDX-License-Identifier: Apache-2.0
"""Counts the flows of every node, and tracks which nodes do not answer, and why."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.streams import Lines, Streams
from ebpflb.kubectl.ui.traffic import LiveTraffic
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
    """One thread reads the streams of all nodes, from `start()` to `stop()`."""

    def __init__(
        self,
        traffic: LiveTraffic,
        find: Callable[[], Mapping[str, Lines]],
        **periods: float,
    ) -> None:
        """`find`, `periods`: those of Streams."""
        self._traffic = traffic
        self._find = find
        self._feeds: dict[str, NodeFeed] = {}
        self._trouble = ""
        self._streams = Streams(self._look, **periods)

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

    def _look(self) -> Mapping[str, Lines]:
        try:
            found = self._find()
        except EbpflbError as error:
            self._trouble = _one_line(error)
            raise
        self._trouble = ""
        self._feeds = {node: self._feeds.get(node) or NodeFeed(node) for node in found}
        return found

    def _take(self) -> None:
        for node, what in self._streams:
            feed = self._feeds.get(node)
            if feed is None:
                # The node is gone.
                continue
            if isinstance(what, str):
                self._read(feed, what)
            else:
                feed.state = "following" if what.runs else "silent"
                feed.why = _one_line(what.why)

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


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]

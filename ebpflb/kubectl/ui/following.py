# SPDX-License-Identifier: Apache-2.0
"""Follows the flows of every node, and knows which nodes do not answer, and why."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.ui.traffic import LiveTraffic

_LOOK_SECONDS = 30.0
_PAUSE_SECONDS = 5.0
_LONGEST_REASON = 300

# What yields the lines of one agent's flows as they come, and an empty line now and then.
Lines = Callable[[], Iterator[str]]


@dataclass(slots=True)
class NodeFeed:
    """state: connecting, following, silent (`why`). lost: flows that came too fast."""

    node: str
    state: str = "connecting"
    why: str = ""
    flows: int = 0
    lost: int = 0
    unreadable: int = 0


class Following:
    """One thread for each node, and one that looks for nodes, from `start()` to `stop()`.

    A stream that breaks off is begun again: at once if it has lasted, because agents of 0.1.0 end
    one in which nothing happens for 10 s.
    """

    def __init__(
        self,
        traffic: LiveTraffic,
        find: Callable[[], Mapping[str, Lines]],
        pause_seconds: float = _PAUSE_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """`find`: the nodes of the moment. EbpflbError leaves them as they were."""
        self._traffic = traffic
        self._find = find
        self._pause_seconds, self._look_seconds = pause_seconds, look_seconds
        self._lines: Mapping[str, Lines] = {}
        self._feeds: dict[str, NodeFeed] = {}
        self._trouble = ""
        self._stopped = threading.Event()

    def start(self) -> None:
        """EbpflbError if there is nothing to follow."""
        self._take(self._find())
        _start(self._look)

    def stop(self) -> None:
        """Begin nothing again. A thread ends when its stream does, or with the program."""
        self._stopped.set()

    def nodes(self) -> list[dict[str, Any]]:
        """As the page gets them."""
        return [asdict(feed) for _, feed in sorted(self._feeds.items())]

    @property
    def trouble(self) -> str:
        """Why new nodes are not found."""
        return self._trouble

    def _look(self) -> None:
        while not self._stopped.wait(self._look_seconds):
            try:
                self._take(self._find())
                self._trouble = ""
            except EbpflbError as error:
                self._trouble = _one_line(error)

    def _take(self, lines: Mapping[str, Lines]) -> None:
        self._lines = lines
        for node in lines.keys() - self._feeds.keys():
            feed = NodeFeed(node)
            self._feeds = {**self._feeds, node: feed}
            _start(self._follow, feed)

    def _follow(self, feed: NodeFeed) -> None:
        while (lines := self._lines.get(feed.node)) and not self._stopped.is_set():
            began = time.monotonic()
            try:
                with closing(lines()) as stream:  # type: ignore[type-var]
                    for line in stream:
                        if self._stopped.is_set():
                            return
                        feed.state, feed.why = "following", ""
                        self._read(feed, line)
                why = "the agent has stopped"
            except EbpflbError as error:
                why = _one_line(error)
            except Exception as error:  # noqa: BLE001  the page says so, and the other nodes go on
                why = _one_line(f"unexpected {type(error).__name__}: {error}")
            if time.monotonic() - began < self._pause_seconds or feed.state != "following":
                feed.state, feed.why = "silent", why
                self._stopped.wait(self._pause_seconds)
        self._feeds = {node: each for node, each in self._feeds.items() if node != feed.node}

    def _read(self, feed: NodeFeed, line: str) -> None:
        if not line.strip():
            return
        try:
            flow = json.loads(line)
            if isinstance(flow, dict) and isinstance(flow.get("lost"), int):
                feed.lost += max(flow["lost"], 0)
                return
            self._traffic.add(feed.node, flow)
            feed.flows += 1
        except (ValueError, RecursionError):
            feed.unreadable += 1


def _start(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given, name="ebpflb-follow", daemon=True).start()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]

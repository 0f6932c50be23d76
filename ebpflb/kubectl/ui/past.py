# SPDX-License-Identifier: Apache-2.0
"""A window in the past: the flows that all nodes have kept, counted as if they came now."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import nextafter
from typing import Any, NamedTuple

from ebpflb.config.moment import local
from ebpflb.errors import ConfigError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.ui.aside import Heard
from ebpflb.kubectl.ui.following import NodeFeed
from ebpflb.kubectl.ui.traffic import WINDOWS, EdgeTraffic
from ebpflb.model.flow import Flow, LostFlows

AskFlows = Callable[[Mapping[str, str]], Heard[list[Flow | LostFlows]]]
"""The parameters of the agents' query: since, until, limit. EbpflbError."""

MOST_FLOWS = 20_000
"""Of one window; no relay gives more."""

_HOURS = 24
# How far the clocks of nodes may be from that of this machine.
_CLOCKS_SECONDS = 30
_KEPT_SECONDS = 60.0
_MOST_KEPT = 4
_NOTHING = "has kept no flow of this time: it may have no history from then"


class Moment(NamedTuple):
    """What the page shows, of now or of the past. nodes: as the page gets them."""

    traffic: EdgeTraffic
    nodes: list[dict[str, Any]]
    trouble: str = ""


class Past:
    """Keeps the last few windows for a minute. Thread-safe: asks for one window at a time."""

    def __init__(self, ask: AskFlows, clock: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._clock = clock
        self._kept: dict[int, tuple[float, Moment]] = {}
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def at(self, until: int, nodes: Iterable[str]) -> Moment:
        """The longest window that ends then. `nodes`: that should answer. EbpflbError."""
        with self._lock:
            now = self._clock()
            self._kept = {
                at: (asked, kept)
                for at, (asked, kept) in self._kept.items()
                if now - asked < _KEPT_SECONDS
            }
            if until not in self._kept:
                if len(self._kept) == _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[until] = now, self._look(until, now, nodes)
            return self._kept[until][1]

    def _look(self, until: int, now: float, nodes: Iterable[str]) -> Moment:
        begin = until - WINDOWS[-1]
        if not 0 <= now - until <= _HOURS * 3600 - WINDOWS[-1]:
            raise ConfigError(f"until: a time in the last {_HOURS} hours, not later than now")
        wanted = {
            "since": f"{now - begin + _CLOCKS_SECONDS:.0f}s",
            "limit": str(MOST_FLOWS),
        }
        if (ago := now - until - _CLOCKS_SECONDS) > 0:
            wanted["until"] = f"{ago:.0f}s"
        found, said, failures = self._ask(wanted)
        is_cut = len(found) >= MOST_FLOWS
        replay = _Replay(nodes, begin, until)
        replay.count(found, is_cut=is_cut)
        replay.note(failures)
        cut = f"there are more than {MOST_FLOWS:,} flows: only the last ones are counted"
        trouble = "; ".join([*said, *([cut] if is_cut else [])])
        return Moment(replay.traffic, replay.nodes(), trouble)


class _Replay:
    """Flows from begin to end, by the clocks of their nodes."""

    def __init__(self, nodes: Iterable[str], begin: float, end: float) -> None:
        self._now, self._end = begin, end
        self._feeds = {node: NodeFeed(node, "answered") for node in nodes}
        self.traffic = EdgeTraffic(lambda: self._now)

    def count(self, found: Iterable[Flow | LostFlows], *, is_cut: bool) -> None:
        """Those in order of time. `is_cut`: whether earlier ones are missing."""
        timed = []
        for each in found:
            if isinstance(each, LostFlows):
                self._feed(each.node).lost += each.lost
            elif (moment := _moment(each)) is None:
                self._feed(each.node).unreadable += 1
            elif self._now <= moment < self._end:
                timed.append((moment, each))
        timed.sort(key=lambda pair: pair[0])
        if is_cut and timed:
            self._now = timed[0][0]
            self.traffic = EdgeTraffic(lambda: self._now)
        for self._now, flow in timed:
            self._add(flow)
        self._now = nextafter(self._end, 0)

    def _add(self, flow: Flow) -> None:
        feed = self._feed(flow.node)
        try:
            self.traffic.add(flow)
            feed.flows += 1
        except ValueError:
            feed.unreadable += 1

    def note(self, failures: Mapping[str, Iterable[str]]) -> None:
        """What went wrong, and which nodes have nothing to say."""
        for why, nodes in failures.items():
            for feed in map(self._feed, nodes):
                feed.state, feed.why = "silent", why
        for feed in self._feeds.values():
            if feed.state != "silent" and not feed.flows:
                feed.state, feed.why = "empty", _NOTHING

    def nodes(self) -> list[dict[str, Any]]:
        """As the page gets them; one without an agent has nothing to say."""
        return [asdict(each) for _, each in sorted(self._feeds.items()) if each.why != NO_AGENT]

    def _feed(self, node: str) -> NodeFeed:
        return self._feeds.setdefault(node, NodeFeed(node, "answered"))


def _moment(flow: Flow) -> float | None:
    """None for a day that there is not, as February 30."""
    try:
        return local(flow.time).timestamp()
    except ValueError:
        return None

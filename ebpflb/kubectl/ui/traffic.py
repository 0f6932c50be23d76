# SPDX-License-Identifier: Apache-2.0
"""The traffic of some minutes by edge, in bounded memory; and its latest flows."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple

from ebpflb.kubectl.ui.edges import THE_OTHERS, Edge, edge_of
from ebpflb.kubectl.ui.tally import Tally, total
from ebpflb.model.flow import Flow
from ebpflb.words.connections import FORWARDED

WINDOWS = (60, 300)
SLOT_SECONDS = 20
"""Every window has a whole number of slots."""

_MOST_EDGES = 10_000
_KEPT_FLOWS = 4000


class KeptFlow(NamedTuple):
    """number: the page's id of the flow."""

    number: int
    edge: Edge
    flow: Flow


class WindowSums(NamedTuple):
    """begin, end: of the time that the tallies cover."""

    tallies: dict[Edge, Tally]
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """At least 1, so that a rate means something."""
        return max(self.end - self.begin, 1.0)


class Bar(NamedTuple):
    """The connections of one slot, and how many of them had problems. begin: of the slot."""

    begin: int
    connections: int
    problems: int


class EdgeTraffic:
    """What was counted in the last minutes before the clock's time. Thread-safe.

    All times are seconds since 1970. The clock is that of the machine, or set by whoever counts
    flows of the past.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, most_edges: int = _MOST_EDGES
    ) -> None:
        self._clock = clock
        self._most = most_edges
        self._begun = clock()
        self._edges: dict[Edge, deque[tuple[int, Tally]]] = {}
        self._looked_at = self._slot()
        self._numbers = count(1)
        # Flows with problems are rare, and must not be pushed out by those without.
        self._fine: deque[KeptFlow] = deque(maxlen=_KEPT_FLOWS)
        self._trouble: deque[KeptFlow] = deque(maxlen=_KEPT_FLOWS)
        self._lock = threading.Lock()

    def add(self, flow: Flow) -> None:
        """Count a flow. ValueError: see edge_of()."""
        edge = edge_of(flow)
        with self._lock:
            slot = self._slot()
            self._drop_idle(slot)
            edge = self._with_room(edge)
            slots = self._edges.setdefault(edge, deque())
            if not slots or slots[-1][0] != slot:
                slots.append((slot, Tally()))
                self._expire(slots, slot)
            slots[-1][1].count(flow)
            kept = self._fine if edge.verdict == FORWARDED else self._trouble
            kept.append(KeptFlow(next(self._numbers), edge, flow))

    def read(self, window: int) -> WindowSums:
        """What was counted in the last `window` seconds."""
        with self._lock:
            now, slot = self._clock(), self._slot()
            first = slot - window // SLOT_SECONDS + 1
            tallies = {
                edge: total(tally for at, tally in slots if at >= first)
                for edge, slots in self._edges.items()
                if slots[-1][0] >= first
            }
        return WindowSums(tallies, max(self._begun, first * SLOT_SECONDS), now)

    def history(self, wanted: Callable[[Edge], bool]) -> list[Bar]:
        """Each slot of the longest window."""
        length = WINDOWS[-1] // SLOT_SECONDS
        with self._lock:
            first = self._slot() - length + 1
            sums = [(0, 0)] * length
            for edge, slots in self._edges.items():
                if wanted(edge):
                    for at, tally in slots:
                        if at >= first:
                            all_, bad = sums[at - first]
                            sums[at - first] = (all_ + tally.connections, bad + tally.problems)
        return [Bar((first + at) * SLOT_SECONDS, *each) for at, each in enumerate(sums)]

    def latest(self, wanted: Callable[[KeptFlow], bool], most: int) -> list[KeptFlow]:
        """The latest flows, newest first; if any failed, at most half are ones that did not."""
        with self._lock:
            trouble = list(_last(self._trouble, wanted, most))
            fine = list(_last(self._fine, wanted, most - min(len(trouble), most // 2)))
        return sorted([*trouble[: most - len(fine)], *fine], key=lambda each: -each.number)

    def flow(self, number: int, id_: str = "") -> KeptFlow | None:
        """By its id, since what is counted again gets other numbers; agents may give none."""
        with self._lock:
            kept = [*self._fine, *self._trouble]
        wanted = (each for each in kept if (each.flow.id == id_ if id_ else each.number == number))
        return next(wanted, None)

    def _slot(self) -> int:
        return int(self._clock() // SLOT_SECONDS)

    def _with_room(self, edge: Edge) -> Edge:
        """The edge; if there are too many, one for all others of its Service, or of all Services.

        Addresses without a name, of which there may be any number, get at most half of the room.
        What is healthy leaves a quarter of it for problems.
        """
        others = edge._replace(client=THE_OTHERS, target=THE_OTHERS, node="")
        for each, limit in ((edge, self._room(edge)), (others, 2 * self._most)):
            if each in self._edges or len(self._edges) < limit:
                return each
        return others._replace(service=THE_OTHERS.name, namespace="")

    def _room(self, edge: Edge) -> int:
        if edge.client.kind == "outside":
            return self._most // 2
        return self._most * 3 // 4 if edge.verdict == FORWARDED else self._most

    def _expire(self, slots: deque[tuple[int, Tally]], now: int) -> None:
        while slots[0][0] <= now - WINDOWS[-1] // SLOT_SECONDS:
            slots.popleft()

    def _drop_idle(self, now: int) -> None:
        """Runs once per slot."""
        if now == self._looked_at:
            return
        self._looked_at = now
        oldest = now - WINDOWS[-1] // SLOT_SECONDS
        for edge in [edge for edge, slots in self._edges.items() if slots[-1][0] <= oldest]:
            del self._edges[edge]


def _last(
    flows: Iterable[KeptFlow], wanted: Callable[[KeptFlow], bool], most: int
) -> Iterator[KeptFlow]:
    found = (each for each in reversed(list(flows)) if wanted(each))
    for _, each in zip(range(most), found, strict=False):
        yield each

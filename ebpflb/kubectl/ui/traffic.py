# SPDX-License-Identifier: Apache-2.0
"""The traffic of the last minutes by edge, in bounded memory; and the latest flows."""

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

_SLOT_SECONDS = 20
_MOST_EDGES = 10_000
_KEPT_FLOWS = 4000


class KeptFlow(NamedTuple):
    """number: the page's id of the flow."""

    number: int
    edge: Edge
    flow: Flow


class WindowSums(NamedTuple):
    """seconds: the time that the tallies cover."""

    tallies: dict[Edge, Tally]
    seconds: float


class LiveTraffic:
    """Thread-safe."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most_edges: int = _MOST_EDGES
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
            first = slot - window // _SLOT_SECONDS + 1
            tallies = {
                edge: total(tally for at, tally in slots if at >= first)
                for edge, slots in self._edges.items()
                if slots[-1][0] >= first
            }
        seconds = now - max(self._begun, first * _SLOT_SECONDS)
        return WindowSums(tallies, max(seconds, 1.0))

    def history(self, wanted: Callable[[Edge], bool]) -> list[tuple[int, int]]:
        """Connections, and how many of them failed, in each slot of the longest window."""
        length = WINDOWS[-1] // _SLOT_SECONDS
        with self._lock:
            first = self._slot() - length + 1
            sums = [(0, 0)] * length
            for edge, slots in self._edges.items():
                if wanted(edge):
                    for at, tally in slots:
                        if at >= first:
                            all_, bad = sums[at - first]
                            sums[at - first] = (all_ + tally.connections, bad + tally.problems)
        return sums

    def latest(self, wanted: Callable[[KeptFlow], bool], most: int) -> list[KeptFlow]:
        """The latest flows, newest first; if any failed, at most half are ones that did not."""
        with self._lock:
            trouble = list(_last(self._trouble, wanted, most))
            fine = list(_last(self._fine, wanted, most - min(len(trouble), most // 2)))
        return sorted([*trouble[: most - len(fine)], *fine], key=lambda each: -each.number)

    def flow(self, number: int) -> KeptFlow | None:
        with self._lock:
            kept = [*self._fine, *self._trouble]
        return next((each for each in kept if each.number == number), None)

    def _slot(self) -> int:
        return int(self._clock() // _SLOT_SECONDS)

    def _with_room(self, edge: Edge) -> Edge:
        """The edge; if there are too many, one for all others of its Service, or of all Services.

        Addresses without a name, of which there may be any number, get at most half of the room.
        """
        others = edge._replace(client=THE_OTHERS, target=THE_OTHERS, node="")
        room = self._most // 2 if edge.client.kind == "outside" else self._most
        for each, limit in ((edge, room), (others, 2 * self._most)):
            if each in self._edges or len(self._edges) < limit:
                return each
        return others._replace(service=THE_OTHERS.name, namespace="")

    def _expire(self, slots: deque[tuple[int, Tally]], now: int) -> None:
        while slots[0][0] <= now - WINDOWS[-1] // _SLOT_SECONDS:
            slots.popleft()

    def _drop_idle(self, now: int) -> None:
        """Runs once per slot."""
        if now == self._looked_at:
            return
        self._looked_at = now
        oldest = now - WINDOWS[-1] // _SLOT_SECONDS
        for edge in [edge for edge, slots in self._edges.items() if slots[-1][0] <= oldest]:
            del self._edges[edge]


def _last(
    flows: Iterable[KeptFlow], wanted: Callable[[KeptFlow], bool], most: int
) -> Iterator[KeptFlow]:
    found = (each for each in reversed(list(flows)) if wanted(each))
    for _, each in zip(range(most), found, strict=False):
        yield each

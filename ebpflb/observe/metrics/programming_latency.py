# SPDX-License-Identifier: Apache-2.0
"""How long a change of endpoints takes: until it is in force, and until the first connection."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from struct import Struct
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.records import USABLE
from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Trigger

_log = logging.getLogger("ebpflb.agent")
LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
# So many are looked after at once; of a change that brings more some are left out.
MOST_PENDING = 1024
# struct lb_backend: flags, generation.
_RECORD = Struct("=20xII4x")


class Delay(NamedTuple):
    """How long one change took, in seconds."""

    family: Family
    seconds: float


class Latency:
    """Times of changes that are not in force yet."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970. What happened before now tells nothing."""
        self._wall = wall
        self._started = wall()
        self._pending: dict[tuple[ServiceName, Family], list[float]] = {}

    def note(self, triggers: Iterable[Trigger]) -> None:
        """Remember when changes were triggered."""
        for service, family, triggered in triggers:
            if triggered is None:
                self._pending.pop((service, family), None)
            elif triggered > self._started:
                self._pending.setdefault((service, family), []).append(triggered)

    def take(self) -> Iterator[Delay]:
        """Everything noted is in force now."""
        now = self._wall()
        pending, self._pending = self._pending, {}
        for (_, family), times in pending.items():
            yield from (Delay(family, now - triggered) for triggered in times)

    def forget(self) -> None:
        """What was noted is part of a sync that failed."""
        self._pending.clear()


class FirstConnections:
    """Of one node. `look()` is for one thread."""

    def __init__(
        self, tell: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`tell`: seconds, for each endpoint that got its first connection."""
        self._tell = tell
        self._clock = clock
        self._maps: MapSet | None = None
        # By place in lb_backends: the generation that was found there while it was offered.
        self._known: dict[int, int] = {}
        self._pending: dict[int, float] = {}

    def look(self, maps: MapSet, written: float | None) -> bool:
        """Tell of those that got one; whether others wait. MapError.

        `written`: when backends were last written, by the clock; None: not since the last look.
        """
        if maps is not self._maps:
            self._maps = maps
            self._known, self._pending = _offered(maps["lb_backends"]), {}
        elif written is not None:
            self._note(_offered(maps["lb_backends"]), written)
        self._settle(maps["lb_count_back"])
        return bool(self._pending)

    def _note(self, offered: dict[int, int], written: float) -> None:
        before, self._known = self._known, offered
        for place in [each for each in self._pending if before[each] != offered.get(each)]:
            del self._pending[place]
        for place, generation in offered.items():
            if before.get(place) != generation and len(self._pending) < MOST_PENDING:
                self._pending[place] = written

    def _settle(self, counters: BpfMap) -> None:
        now = self._clock()
        for place, since in list(self._pending.items()):
            if _connections(counters, place):
                self._tell(now - since)
                del self._pending[place]
            elif now - since > PATIENCE_SECONDS:
                del self._pending[place]


class FirstConnectionsThread:
    """Looks as long as somebody waits, once a second; otherwise it waits for a write."""

    def __init__(
        self, watched: FirstConnections, maps: Callable[[], MapSet | None], written: threading.Event
    ) -> None:
        """`maps`: those in use. `written` is set after each write, and cleared here."""
        self._watched = watched
        self._maps = maps
        self._written = written
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-first", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._written.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        waiting = False
        while not self._stopped.is_set():
            is_written = self._written.wait(LOOK_SECONDS if waiting else None)
            self._written.clear()
            waiting = self._look(time.monotonic() if is_written else None)
            self._stopped.wait(LOOK_SECONDS)

    def _look(self, written: float | None) -> bool:
        maps = self._maps()
        if maps is None:
            return False
        try:
            return self._watched.look(maps, written)
        except EbpflbError as error:
            _log.warning("cannot see whether endpoints get connections: %s", error)
            return False


def _offered(backends: BpfMap) -> dict[int, int]:
    chunks = (chunk.values for chunk in backends.chunks())
    records = chain.from_iterable(map(_RECORD.iter_unpack, chunks))
    return {
        place: generation for place, (flags, generation) in enumerate(records) if flags & USABLE
    }


def _connections(counters: BpfMap, place: int) -> int:
    value = counters.lookup(place.to_bytes(4, byteorder)) or b""
    return sum(memoryview(value).cast("Q")[:: counters.value_size // counters.cpus // 8])

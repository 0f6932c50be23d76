# SPDX-License-Identifier: Apache-2.0
"""How long changes of endpoints take: until they are in force, and until the first connection."""

import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count
from operator import ne
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.records import USABLE
from ebpflb.dataplane.layout.structs import LbBackend, packed_format
from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Trigger

_log = logging.getLogger("ebpflb.agent")
CHECK_SECONDS = 1.0
PATIENCE_SECONDS = 300.0
# How many endpoints can wait at the same time; others are not measured.
MOST_PENDING = 1024
# How many serials are compared at once.
_BLOCK = 4096
_RECORD = packed_format(LbBackend, "flags", "serial")


class Delay(NamedTuple):
    """How long a change of endpoints took to be in force, in seconds."""

    family: Family
    seconds: float


class ProgrammingLatency:
    """Changes not in force yet, by the rules of kube-proxy's EndpointsChangeTracker."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970. Changes triggered before now are ignored."""
        self._wall = wall
        self._started = wall()
        self._pending: dict[tuple[ServiceName, Family], list[float]] = {}

    def note(self, triggers: Iterable[Trigger]) -> None:
        for service, family, triggered in triggers:
            if triggered is None:
                self._pending.pop((service, family), None)
            elif triggered > self._started:
                self._pending.setdefault((service, family), []).append(triggered)

    def take(self) -> Iterator[Delay]:
        """All changes noted so far are in force now; yields their delays."""
        now = self._wall()
        pending, self._pending = self._pending, {}
        for (_, family), times in pending.items():
            yield from (Delay(family, now - triggered) for triggered in times)

    def forget(self) -> None:
        """The sync with the changes noted so far has failed."""
        self._pending.clear()


class FirstConnections:
    """How long new endpoints wait for their first connection. Not thread-safe.

    Endpoints seen by the first `check()` are ignored: their start is unknown.
    """

    def __init__(
        self, observe: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`observe`: called with the seconds when an endpoint gets its first connection."""
        self._observe = observe
        self._clock = clock
        self._maps: MapSet | None = None
        # By index in lb_backends: the serial of a usable backend, 0 for others.
        self._known = array("I")
        # Index -> since when the endpoint has been waiting.
        self._pending: dict[int, float] = {}

    def check(self, maps: MapSet, written: float | None) -> bool:
        """Whether endpoints are still waiting. MapError.

        `written`: when backends were last written, by the clock; None: not since the last check.
        """
        if maps is not self._maps:
            self._maps = maps
            self._known, self._pending = _usable(maps["lb_backends"]), {}
        elif written is not None:
            self._add_new(_usable(maps["lb_backends"]), written)
        self._observe_connected(maps["lb_count_back"])
        return bool(self._pending)

    def _add_new(self, usable: "array[int]", written: float) -> None:
        before, self._known = self._known, usable
        for index in [each for each in self._pending if before[each] != usable[each]]:
            del self._pending[index]
        for index in _differing(before, usable):
            if usable[index] and len(self._pending) < MOST_PENDING:
                self._pending[index] = written

    def _observe_connected(self, counters: BpfMap) -> None:
        now = self._clock()
        for index, since in list(self._pending.items()):
            if _connections(counters, index):
                self._observe(now - since)
                del self._pending[index]
            elif now - since > PATIENCE_SECONDS:
                del self._pending[index]


class FirstConnectionsThread:
    """Checks once a second while endpoints wait; otherwise after each write."""

    def __init__(
        self, first: FirstConnections, maps: Callable[[], MapSet | None], written: threading.Event
    ) -> None:
        """`maps`: returns those in use. `written`: set after each write, cleared here."""
        self._first = first
        self._maps = maps
        self._written = written
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-first", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._written.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        waiting = False
        while not self._stopped.is_set():
            is_written = self._written.wait(CHECK_SECONDS if waiting else None)
            self._written.clear()
            waiting = self._check(time.monotonic() if is_written else None)
            self._stopped.wait(CHECK_SECONDS)

    def _check(self, written: float | None) -> bool:
        maps = self._maps()
        if maps is None:
            return False
        try:
            return self._first.check(maps, written)
        except EbpflbError as error:
            _log.warning("cannot measure the time to the first connection: %s", error)
            return False


def _usable(backends: BpfMap) -> "array[int]":
    found = array("I")
    for chunk in backends.chunks():
        if chunk.values.count(0) < len(chunk.values):
            records = _RECORD.iter_unpack(chunk.values)
            found.extend(serial if flags & USABLE else 0 for flags, serial in records)
        else:
            found.frombytes(bytes(found.itemsize * chunk.size))
    return found


def _differing(before: "array[int]", after: "array[int]") -> Iterator[int]:
    """The places at which two arrays differ, block by block: most are equal as a whole."""
    for begin in range(0, len(after), _BLOCK):
        old, new = before[begin : begin + _BLOCK], after[begin : begin + _BLOCK]
        if old.tobytes() != new.tobytes():
            yield from compress(count(begin), map(ne, old, new))


def _connections(counters: BpfMap, index: int) -> int:
    value = counters.lookup(index.to_bytes(4, byteorder)) or b""
    return sum(memoryview(value).cast("Q")[:: counters.value_size // counters.cpus // 8])

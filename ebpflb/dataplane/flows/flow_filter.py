# SPDX-License-Identifier: Apache-2.0
"""Expires marks of lb_flow_filter that no flow needs any more.

The programs set marks for the packets of each new flow, and look up only packets with a mark. Each
mark has a time. Once there are many, all flows are visited: old marks that are still needed are
renewed, and then lb_settings declares all older ones invalid.
"""

import time
from array import array
from collections.abc import Callable, Iterator
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.layout.records import pack_index
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings, LbTuple, packed_format

_KEY = bytes(4)
# The programs mark flows that move from a later table to an earlier one. lb_ct_dsr has no replies.
_TABLES = ("lb_ct_short", "lb_conntrack", "lb_ct_udp", "lb_ct_stream", "lb_ct_short")
# Out of 65,536 marks: this share of unrelated packets is looked up in vain.
_MOST_MARKS = 65536 // 16
_PERIOD_NS = 30 * 1_000_000_000
# While that many flows need half of the marks, there is little to win, and much to look at.
_LONG_PERIOD_NS = 600 * 1_000_000_000
# Younger marks stay. Programs take less than a second, packets routed by the stack rarely more.
_GRACE_NS = 30 * 1_000_000_000
_MARK_SHIFT = 30
_WORD = (1 << 64) - 1
_TUPLE = packed_format(LbTuple, "saddr", "daddr", "sport", "dport")
_DIRECTION = packed_format(LbConntrack, "direction")
_REPLY = int(Direction.LB_DIR_REPLY)


def filter_floor_of(settings: BpfMap) -> int:
    """The value in lb_settings. MapError."""
    value = settings.lookup(_KEY) or bytes(settings.value_size)
    return int(LbSettings.from_buffer_copy(value).filter_floor)


def flow_mark(now: int) -> int:
    """Like lb_flow_mark() in bpf/filter.h. `now`: CLOCK_MONOTONIC in ns."""
    return now >> _MARK_SHIFT


class FilterMarks:
    """Iterates over all flows, a few with each `step()`, when there are many marks."""

    def __init__(
        self, maps: MapSet, budget: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`budget`: about how many entries one step looks at. `clock`: CLOCK_MONOTONIC in ns."""
        self._maps = maps
        self._budget = budget
        self._clock = clock
        self._due = 0
        self._period = _PERIOD_NS
        self._pass: Iterator[None] | None = None

    def step(self) -> bool:
        """Look at the next flows, if it is time to; returns whether there are more. MapError.

        Call it only while all hooks run programs that set marks.
        """
        if self._clock() < self._due:
            return False
        self._pass = self._pass or self._renew()
        for _ in self._pass:
            return True
        self._pass, self._due = None, self._clock() + self._period
        return False

    def _renew(self) -> Iterator[None]:
        settings = self._maps["lb_settings"]
        marks = self._read()
        self._period = _PERIOD_NS
        floor = filter_floor_of(settings)
        if sum(mark >= floor for mark in marks) <= _MOST_MARKS:
            return
        now = self._clock()
        oldest = flow_mark(now - _GRACE_NS)
        for name in _TABLES:
            for chunk in self._maps[name].chunks(self._budget):
                self._mark(marks, chunk, oldest, flow_mark(now))
                yield
        if sum(mark >= oldest for mark in marks) > len(marks) // 2:
            self._period = _LONG_PERIOD_NS
        value = LbSettings.from_buffer_copy(settings.lookup(_KEY) or bytes(settings.value_size))
        value.filter_floor = max(floor, oldest)
        settings.update(_KEY, bytes(value))

    def _read(self) -> "array[int]":
        return array("I", b"".join(each.values for each in self._maps["lb_flow_filter"].chunks()))

    def _mark(self, marks: "array[int]", chunk: Chunk, oldest: int, mark: int) -> None:
        """Renew the outdated marks of these entries, in the map and in `marks`."""
        renewed = set()
        directions = _DIRECTION.iter_unpack(chunk.values)
        for key, (direction,) in zip(_TUPLE.iter_unpack(chunk.keys), directions, strict=True):
            if direction == _REPLY:
                index = _index(*key)
                if marks[index] < oldest:
                    marks[index] = mark
                    renewed.add(index)
        value = mark.to_bytes(4, byteorder)
        self._maps["lb_flow_filter"].update_batch([(pack_index(i), value) for i in renewed])


def _index(source: bytes, destination: bytes, source_port: int, destination_port: int) -> int:
    """Like lb_flow_filter_index() in bpf/filter.h."""
    hashed = (int.from_bytes(source[12:] + destination[12:], "big") * 0x9E3779B97F4A7C15) & _WORD
    hashed ^= hashed >> 32 ^ (source_port << 16 | destination_port)
    return (hashed * 0xC2B2AE3D27D4EB4F & _WORD) >> 48

# SPDX-License-Identifier: Apache-2.0
"""Lets marks of lb_flow_filter expire that no flow needs any more.

The programs mark the packets that a new flow is given, and look no packet up that is not marked.
A mark says when it was made. Once there are many, all flows are looked at: those that still need
an old mark get a new one, and then lb_settings says that the old ones do not count.
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
# A flow on its way from a later table to an earlier one is marked by the programs.
_TABLES = ("lb_ct_short", "lb_conntrack", "lb_ct_udp", "lb_ct_stream", "lb_ct_short")
# Of 65,536 marks: one in so many packets that are none of ours is looked up in vain.
_MOST_MARKS = 65536 // 16
_PERIOD_NS = 30 * 1_000_000_000
# Younger marks stay. A program takes no second, what the stack routes seldom takes longer.
_GRACE_NS = 30 * 1_000_000_000
_MARK_SHIFT = 30
_WORD = (1 << 64) - 1
_TUPLE = packed_format(LbTuple, "saddr", "daddr", "sport", "dport")
_DIRECTION = packed_format(LbConntrack, "direction")
_REPLY = int(Direction.LB_DIR_REPLY)


def filter_floor_of(settings: BpfMap) -> int:
    """What lb_settings says. MapError."""
    value = settings.lookup(_KEY) or bytes(settings.value_size)
    return int(LbSettings.from_buffer_copy(value).filter_floor)


def flow_mark(now: int) -> int:
    """As lb_flow_mark() of bpf/filter.h. `now`: CLOCK_MONOTONIC in ns."""
    return now >> _MARK_SHIFT


class FilterMarks:
    """Goes over all flows, some with each `step()`, when there are many marks."""

    def __init__(
        self, maps: MapSet, budget: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`budget`: about how many entries one step looks at. `clock`: CLOCK_MONOTONIC in ns."""
        self._maps = maps
        self._budget = budget
        self._clock = clock
        self._due = 0
        self._pass: Iterator[None] | None = None

    def step(self) -> bool:
        """Look at the next flows, if it is time to; whether there are more. MapError.

        Only while all hooks run programs that make marks.
        """
        if self._clock() < self._due:
            return False
        self._pass = self._pass or self._renew()
        for _ in self._pass:
            return True
        self._pass, self._due = None, self._clock() + _PERIOD_NS
        return False

    def _renew(self) -> Iterator[None]:
        settings = self._maps["lb_settings"]
        marks = self._read()
        floor = filter_floor_of(settings)
        if sum(mark >= floor for mark in marks) <= _MOST_MARKS:
            return
        now = self._clock()
        oldest = flow_mark(now - _GRACE_NS)
        for name in _TABLES:
            for chunk in self._maps[name].chunks(self._budget):
                self._mark(marks, chunk, oldest, flow_mark(now))
                yield
        value = LbSettings.from_buffer_copy(settings.lookup(_KEY) or bytes(settings.value_size))
        value.filter_floor = max(floor, oldest)
        settings.update(_KEY, bytes(value))

    def _read(self) -> "array[int]":
        return array("I", b"".join(each.values for each in self._maps["lb_flow_filter"].chunks()))

    def _mark(self, marks: "array[int]", chunk: Chunk, oldest: int, mark: int) -> None:
        """Renew the marks of these entries that are too old, also in `marks`."""
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
    """As lb_flow_filter_index() of bpf/filter.h."""
    hashed = (int.from_bytes(source[12:] + destination[12:], "big") * 0x9E3779B97F4A7C15) & _WORD
    hashed ^= hashed >> 32 ^ (source_port << 16 | destination_port)
    return (hashed * 0xC2B2AE3D27D4EB4F & _WORD) >> 48

# SPDX-License-Identifier: Apache-2.0
"""Moves flows back that were diverted while a table that evicts was replaced.

Meanwhile, new flows were put into lb_conntrack and lb_ct_stream. Those that were not established,
and those of direct server return, must not stay there: a flood of them would use up the room, and
the kernel does not evict any.
"""

import time
from collections.abc import Callable, Mapping
from errno import EEXIST

from ebpflb.dataplane.flows.conntrack import reverse
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, split
from ebpflb.dataplane.kernel.uapi import Exist
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Hook
from ebpflb.dataplane.layout.structs import LbConntrack, packed_format
from ebpflb.errors import MapError

_BELONG: Mapping[str, str] = {"lb_conntrack": "lb_ct_short", "lb_ct_stream": "lb_ct_udp"}
# A handshake that takes longer than this is unlikely to continue while it is moved.
_SETTLING_NS = 3_000_000_000
_BUDGET = 2048
_FACTS = packed_format(LbConntrack, "created", "hook", "state", "flags", "other_state")


def bring_back(maps: MapSet, clock: Callable[[], int] = time.monotonic_ns) -> bool:
    """Returns whether all are moved; those that began a moment ago wait. MapError.

    Call it once new flows are no longer diverted. `clock`: CLOCK_MONOTONIC in nanoseconds.
    """
    waiting = {name for name, to in _BELONG.items() if not _bring_back(maps[name], maps[to], clock)}
    return not waiting


def _bring_back(settled: BpfMap, opening: BpfMap, clock: Callable[[], int]) -> bool:
    is_done = True
    for chunk in settled.chunks(_BUDGET):
        for key, value in split(settled, chunk.keys, chunk.values):
            if not _is_diverted(value):
                continue
            if clock() - _FACTS.unpack(value)[0] < _SETTLING_NS:
                is_done = False
                continue
            # It may have been established since the chunk was read.
            value_now = settled.lookup(key)
            if value_now and _is_diverted(value_now):
                _insert(opening, key, value_now)
                settled.delete(key)
                _follow_peer(settled, opening, key, value_now)
    return is_done


def _follow_peer(settled: BpfMap, opening: BpfMap, key: bytes, value: bytes) -> None:
    """Move an entry again if a packet established the flow while it was moved back."""
    entry = LbConntrack.from_buffer_copy(value)
    peer = settled.lookup(reverse(bytes(entry.to)))
    if peer and _is_established(peer):
        entry.state |= CtState.LB_CT_ESTABLISHED
        _insert(settled, key, bytes(entry))
        opening.delete(key)


def _is_diverted(value: bytes) -> bool:
    _, hook, _, flags, _ = _FACTS.unpack(value)
    belongs_here = _is_established(value) and not flags & CtFlag.LB_CT_DSR
    return not belongs_here and hook != Hook.LB_HOOK_RESERVED


def _is_established(value: bytes) -> bool:
    _, _, state, _, other_state = _FACTS.unpack(value)
    return bool((state | other_state) & CtState.LB_CT_ESTABLISHED)


def _insert(table: BpfMap, key: bytes, value: bytes) -> None:
    """Unless a later flow is there."""
    try:
        table.update(key, value, exist=Exist.NO)
    except MapError as error:
        if error.errno != EEXIST:
            raise
        found = table.lookup(key)
        if found and _FACTS.unpack(found)[0] < _FACTS.unpack(value)[0]:
            table.update(key, value)

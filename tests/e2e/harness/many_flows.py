# SPDX-License-Identifier: Apache-2.0
"""Inserts entries of established flows; connecting as many clients would take minutes."""

import struct
import time
from collections.abc import Iterator

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple

# Tables of new flows, which grow when they are more than half full.
NEW_FLOWS = ("lb_ct_short", "lb_ct_udp")

_AT_ONCE = 8192
_TCP = 6
_FRONTEND, _BACKEND = (bytes.fromhex(f"20010db8{'0' * 23}{last}") for last in "12")
_KEY = struct.Struct("=16s16s2s2sB3x")


def add_flows(table: BpfMap, flows: range) -> None:
    """Insert both entries of each flow, by its number; MapError when the table is full."""
    now = time.monotonic_ns()
    original = _rest(now, Direction.LB_DIR_ORIGINAL, Hook.LB_HOOK_HOST_INGRESS)
    reply = _rest(now, Direction.LB_DIR_REPLY, Hook.LB_HOOK_HOST_EGRESS)
    for first in range(flows.start, flows.stop, _AT_ONCE):
        keys, values = [], []
        some = range(first, min(first + _AT_ONCE, flows.stop))
        for there, changed, back, restored in _tuples(some):
            keys += [there, back]
            values += [changed + original, restored + reply]
        table.update_packed(b"".join(keys), b"".join(values))


def _tuples(flows: range) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """The packet of a client, its translation, the reply, and its translation."""
    frontend_port, backend_port, port = (each.to_bytes(2, "big") for each in (80, 8080, 2000))
    for number in flows:
        client = b"\x20\x01\x0d\xb8\1" + number.to_bytes(11, "big")
        yield (
            _KEY.pack(client, _FRONTEND, port, frontend_port, _TCP),
            _KEY.pack(client, _BACKEND, port, backend_port, _TCP),
            _KEY.pack(_BACKEND, client, backend_port, port, _TCP),
            _KEY.pack(_FRONTEND, client, frontend_port, port, _TCP),
        )


def _rest(now: int, direction: Direction, hook: Hook) -> bytes:
    """The entry's value after `to`."""
    state = CtState.LB_CT_SYN | CtState.LB_CT_ACK | CtState.LB_CT_ESTABLISHED
    entry = LbConntrack(created=now, last_seen=now, direction=direction, hook=hook, state=state)
    return bytes(entry)[len(bytes(LbTuple())) :]

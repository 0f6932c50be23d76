# SPDX-License-Identifier: Apache-2.0
"""Entries in the flow tables: their keys, and fast access to a few fields of many entries.

Each flow has one entry per direction. structs.Conntrack has all fields of an entry.
"""

from collections.abc import Iterator
from ctypes import sizeof

from ebpflb.dataplane.kernel.maps import MapSet, used
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple, packed_format
from ebpflb.model.address import Address, Protocol

End = tuple[Address, int]
"""Address and port."""

FLOW_TABLES = ("lb_conntrack", "lb_ct_short", "lb_ct_udp", "lb_ct_stream", "lb_ct_dsr")
UDP_TABLES = ("lb_ct_udp", "lb_ct_stream", "lb_ct_dsr")
"""Tables that may have UDP flows."""

KEY_SIZE = sizeof(LbTuple)
PROTOCOL_AT = LbTuple.proto.offset
_DESTINATION_PORT_AT = LbTuple.dport.offset

_KEY = packed_format(LbTuple)
# The ports, and the protocol with its padding, as raw bytes.
_ENDS = packed_format(LbTuple, "saddr", "daddr", ("sport",), ("dport",), ("proto", "pad"))
_USE = packed_format(
    LbConntrack, "created", ("backend", "serial"), "direction", "state", "flags", "other_state"
)
_LIFE = packed_format(LbConntrack, "to", "created", "last_seen", "state", "other_state")
# Each CPU counts elements separately: the last ones may not fit.
_FULL = 0.99
# Plain ints: enum members are slower to compare.
_ORIGINAL, _CLOSED = int(Direction.LB_DIR_ORIGINAL), int(CtState.LB_CT_CLOSED)
_NONE = CtFlag(0)
_PEER_FIN, _DSR = int(CtState.LB_CT_OTHER_FIN), int(CtFlag.LB_CT_DSR)


def flow_key(source: End, destination: End, protocol: Protocol) -> bytes:
    """The bytes of a struct lb_tuple."""
    return _KEY.pack(source[0], destination[0], source[1], destination[1], protocol)


def reverse(key: bytes) -> bytes:
    """Swaps both ends of a key. Applied to `to` of an entry: the key of the other direction."""
    source, destination, source_port, destination_port, rest = _ENDS.unpack(key)
    return _ENDS.pack(destination, source, destination_port, source_port, rest)


def ends_of(key: bytes) -> tuple[End, End]:
    """Source and destination with their ports."""
    source, destination, source_port, destination_port, _ = _KEY.unpack(key)
    return (Address(source), source_port), (Address(destination), destination_port)


def addresses_of(key: bytes) -> tuple[Address, Address]:
    """Source and destination."""
    return Address(key[:16]), Address(key[16:32])


def is_udp(key: bytes) -> bool:
    """Whether it is of a UDP flow."""
    return key[PROTOCOL_AT] == Protocol.UDP


def destination_port(key: bytes) -> int:
    """In the original direction: the port of the frontend."""
    return int.from_bytes(key[_DESTINATION_PORT_AT : _DESTINATION_PORT_AT + 2], "big")


def open_flows(values: bytes, *, but: CtFlag = _NONE) -> list[tuple[bytes, int]]:
    """For each flow that has not ended: backend and serial, packed, and when it began.

    `values`: of many entries, concatenated. Only entries in the original direction count; those
    reserved for other NAT do not, nor those with the flag `but`. With direct server return the
    client's FIN is the last that is seen of the end (lb_dsr_close()).
    """
    other = int(but)
    return [
        (use, created)
        for created, use, direction, state, flags, other_state in _USE.iter_unpack(values)
        if direction == _ORIGINAL
        and not (state | other_state) & _CLOSED
        and not (flags & _DSR and state & _PEER_FIN)
        and not flags & other
    ]


def is_full(maps: MapSet) -> bool:
    """Whether lb_conntrack may be too full for a newly established flow. MapError."""
    table = maps["lb_conntrack"]
    return used(table) >= _FULL * table.max_entries


def lives(values: bytes) -> Iterator[tuple[bytes, int, int, int, int]]:
    """For many concatenated entries: to, created, last_seen, state, other_state."""
    return _LIFE.iter_unpack(values)

# SPDX-License-Identifier: Apache-2.0
"""UDP flows masqueraded with an address that the node has lost, or whose uplink is down.

Replies to that address are lost, and the flow would never switch to another one. So it is deleted,
and its next datagram opens a new flow. netfilter's masquerade also does this for TCP; here a TCP
connection waits, and continues if the address returns, as after a link was down.
"""

from collections.abc import Collection, Iterator

from ebpflb.dataplane.flows.conntrack import KEY_SIZE, UDP_TABLES, is_udp, reverse
from ebpflb.dataplane.kernel.maps import Chunk, MapSet
from ebpflb.dataplane.layout.enums import CtFlag, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, packed_format
from ebpflb.model.address import Address

_NAT = packed_format(LbConntrack, "to", "direction", "flags")
# Plain ints: enum members are slower to compare.
_ORIGINAL = int(Direction.LB_DIR_ORIGINAL)
_KINDS = int(CtFlag.LB_CT_SNAT | CtFlag.LB_CT_HAIRPIN | CtFlag.LB_CT_TO_POD)
# Replies from pods of this node are handled at their devices, whatever their destination.
_LEAVES_THE_NODE = int(CtFlag.LB_CT_SNAT)


def forget_masqueraded(maps: MapSet, lost: Collection[Address]) -> int:
    """Delete the UDP flows masqueraded with these addresses; returns how many. MapError."""
    flows = [
        flow for name in UDP_TABLES for chunk in maps[name].chunks() for flow in _found(chunk, lost)
    ]
    for key, reply in flows:
        for name in UDP_TABLES:
            maps[name].delete(key)
            maps[name].delete(reply)
    return len(flows)


def _found(chunk: Chunk, lost: Collection[Address]) -> Iterator[tuple[bytes, bytes]]:
    """The keys of both directions of each such flow."""
    if not any(chunk.values.count(address) for address in lost):
        return
    for place, (to, direction, flags) in enumerate(_NAT.iter_unpack(chunk.values)):
        is_leaving = direction == _ORIGINAL and flags & _KINDS == _LEAVES_THE_NODE
        if is_leaving and is_udp(to) and Address(to[:16]) in lost:
            yield chunk.keys[place * KEY_SIZE : (place + 1) * KEY_SIZE], reverse(to)

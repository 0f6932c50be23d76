# SPDX-License-Identifier: Apache-2.0
"""lb_dest_filter: a packet is looked at closer if its destination may be one of ours.

The flags of an element have LB_ADDR_CLUSTER_IP, LB_ADDR_EXTERNAL or LB_ADDR_NODE when the last two
bytes of such an address are its index, and LB_ADDR_NODE_PORT when a NodePort is. No flag is ever
taken away: flows may still be there, and one too many only costs a look.

Besides, each address has a place among the elements, by `fold()`: there one of those with the same
place is named by its index in lb_addr_flags, so that programs find it without lb_addrs.
"""

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.structs import Dest, packed_format
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.model.address import Address

_NODE_PORT = int(AddrFlag.LB_ADDR_NODE_PORT)
_DEST = packed_format(Dest)


def fold(address: Address) -> int:
    """lb_addr_fold(): 16 bits that all of the address counts for."""
    number = int.from_bytes(address, "big")
    number ^= number >> 64
    number ^= number >> 32
    return (number ^ number >> 16) & 0xFFFF


class DestFilter:
    """The filter and its copy here. What is added is written by `flush()`."""

    def __init__(self, array: BpfMap) -> None:
        self._elements = Mirror(array)

    def load(self) -> None:
        """Read the map."""
        self._elements.load()

    def has_address(self, address: Address, flags: int) -> bool:
        """Whether packets to an address with these flags pass."""
        passing, _ = self._element(_end(address))
        return not flags & ~_NODE_PORT & ~passing

    def add_address(self, address: Address, flags: int) -> None:
        """Let packets to an address with these flags (enum lb_addr_flag) pass the filter."""
        self._add(_end(address), flags & ~_NODE_PORT)

    def add_node_port(self, port: int) -> None:
        """Let packets from anywhere to this port of a node's address pass the filter."""
        self._add(port, _NODE_PORT)

    def _add(self, index: int, flags: int) -> None:
        passing, known = self._element(index)
        self._elements.set(index, _DEST.pack(passing | flags, known))

    def named(self, address: Address) -> int | None:
        """The index of the address that is named in this one's place."""
        _, known = self._element(fold(address))
        return known - 1 if known else None

    def name(self, address: Address, index: int | None) -> None:
        """Name an address in its place, by its index in lb_addr_flags; None: name nobody there."""
        place = fold(address)
        passing, _ = self._element(place)
        self._elements.set(place, _DEST.pack(passing, 0 if index is None else index + 1))

    def _element(self, index: int) -> tuple[int, int]:
        passing, known = _DEST.unpack(self._elements[index])
        return passing, known

    def flush(self) -> None:
        """Write what was added. MapError."""
        self._elements.flush()


def _end(address: Address) -> int:
    return int.from_bytes(address[-2:], "big")

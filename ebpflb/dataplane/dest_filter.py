# SPDX-License-Identifier: Apache-2.0
"""lb_dest_filter: a packet is looked at closer if its destination may be one of ours.

An element has LB_ADDR_CLUSTER_IP, LB_ADDR_EXTERNAL or LB_ADDR_NODE when the last two bytes of such
an address are its index, and LB_ADDR_NODE_PORT when a NodePort is. No flag is ever taken away:
flows may still be there, and one too many only costs a look.
"""

from ebpflb.dataplane.enums import AddrFlag
from ebpflb.dataplane.maps import BpfMap
from ebpflb.dataplane.mirror import Mirror
from ebpflb.model.address import Address

_NODE_PORT = int(AddrFlag.LB_ADDR_NODE_PORT)


class DestFilter:
    """The filter and its copy here. What is added is written by `flush()`."""

    def __init__(self, array: BpfMap) -> None:
        self._flags = Mirror(array)

    def load(self) -> None:
        """Read the map."""
        self._flags.load()

    def add_address(self, address: Address, flags: int) -> None:
        """Let packets to an address with these flags (enum lb_addr_flag) pass the filter."""
        self._add(int.from_bytes(address[-2:], "big"), flags & ~_NODE_PORT)

    def add_node_port(self, port: int) -> None:
        """Let packets from anywhere to this port of a node's address pass the filter."""
        self._add(port, _NODE_PORT)

    def _add(self, index: int, flags: int) -> None:
        self._flags.set(index, bytes([self._flags[index][0] | flags]))

    def flush(self) -> None:
        """Write what was added. MapError."""
        self._flags.flush()

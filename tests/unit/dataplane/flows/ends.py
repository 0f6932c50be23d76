# SPDX-License-Identifier: Apache-2.0
"""How the tests' flows end."""

import ctypes

from ebpflb.dataplane.layout.structs import LbTuple
from ebpflb.model.address import Address, Protocol, parse_address

CLIENT, VIP, NODE, POD = map(parse_address, ("192.0.2.9", "10.96.0.1", "192.0.2.1", "10.1.0.1"))


def flow_tuple(
    source: Address, source_port: int, to: Address, port: int, protocol: Protocol
) -> LbTuple:
    key = LbTuple(sport=source_port, dport=port, proto=protocol)
    ctypes.memmove(ctypes.addressof(key), source + to, 32)
    return key

# SPDX-License-Identifier: Apache-2.0
"""A load-balancer IP with source ranges."""

from ipaddress import ip_network

from ebpflb.dataplane.layout.enums import AddrFlag, DescFlag, FrontendTypeCode
from ebpflb.dataplane.layout.structs import LbDesc, LbSourceRange
from tests.bpf.harness.datapath import Datapath, addr
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.services import (
    CLUSTER_PORT,
)

# In a range's key, its id and its IPv4 prefix precede this many bits of the address.
ID_BITS, BEFORE = 32, {4: 96, 6: 0}


def allow(datapath: Datapath, *ranges: str, under: int = 1) -> None:
    """Write ranges under an id."""
    for text in ranges:
        network = ip_network(text)
        length = ID_BITS + BEFORE[network.version] + network.prefixlen
        key = LbSourceRange(length, under, addr(str(network.network_address)))
        datapath.maps["lb_src_ranges"].update(bytes(key), b"\1")


def load_balancer(datapath: Datapath, kind: Kind, backends: list[int], under: int = 1) -> End:
    """A load-balancer IP restricted to the ranges under an id; it must be the first frontend."""
    vip = End(kind.net.external_ip, CLUSTER_PORT)
    datapath.address(vip.address, AddrFlag.LB_ADDR_EXTERNAL)
    index = datapath.frontend(
        vip, kind.proto, local=backends, others=backends, kind=FrontendTypeCode.LB_LOAD_BALANCER
    )
    assert index == 1
    limit(datapath, under)
    return vip


def limit(datapath: Datapath, under: int) -> None:
    """Restrict the first frontend to the ranges under an id."""
    desc = LbDesc.from_buffer_copy(datapath.maps["lb_descs"].lookup(u32(1)) or b"")
    desc.flags, desc.source_ranges = DescFlag.LB_DESC_SOURCE_RANGES, under
    datapath.maps["lb_descs"].update(u32(1), bytes(desc))

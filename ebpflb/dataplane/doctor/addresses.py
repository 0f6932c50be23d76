# SPDX-License-Identifier: Apache-2.0
"""Addresses that are a Service's and a node's at once."""

from collections.abc import Iterator
from sys import byteorder

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.model.address import Address, format_address

CHECK = "addresses"

_NODE, _CLUSTER_IP = int(AddrFlag.LB_ADDR_NODE), int(AddrFlag.LB_ADDR_CLUSTER_IP)
_TAKE_AWAY = "take it off the device (`ip addr show to ADDRESS`); kube-proxy leaves kube-ipvs0"


def check_addresses(maps: MapSet) -> list[Finding]:
    """ClusterIPs and external addresses that this node has itself. MapError."""
    states = Mirror(maps["lb_addr_flags"])
    states.load()
    words = {
        Address(key): AddrRecord.unpack(states[int.from_bytes(value, byteorder)]).flags
        for key, value in maps["lb_addrs"].items()
    }
    vips = sum(word & _CLUSTER_IP != 0 for word in words.values())
    found = [each for address in sorted(words) for each in _judge(address, words[address])]
    return all_well(CHECK, f"none of {vips} ClusterIPs is an address of this node", found)


def _judge(address: Address, word: int) -> Iterator[Finding]:
    if not word & _NODE:
        return
    place = format_address(address)
    if word & _CLUSTER_IP:
        what = "is a ClusterIP and an address of this node"
        yield Finding(Severity.WARNING, CHECK, place, what, _TAKE_AWAY)
    if word & AddrFlag.LB_ADDR_EXTERNAL:
        what = "is an external address of a Service and one of this node: ports of both are served"
        yield Finding(Severity.NOTE, CHECK, place, what)

# SPDX-License-Identifier: Apache-2.0
"""Addresses that belong to both a Service and the node."""

from collections.abc import Iterator, Mapping
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink, read_addresses, read_interfaces
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.dataplane.kube_proxy.ipvs import DEVICE as IPVS_DEVICE
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.model.address import Address, Protocol, format_address

ADDRESSES = "addresses"

_TAKE_AWAY = f"`ip link delete {IPVS_DEVICE}`, once kube-proxy no longer runs here"


class OwnAddress(NamedTuple):
    """Where the node has an address, and the ports on which processes listen at exactly it."""

    device: str = "an unknown device"
    listens: tuple[str, ...] = ()


def own_addresses() -> dict[Address, OwnAddress]:
    """The addresses of the calling thread's network namespace. OSError."""
    with Rtnetlink() as netlink:
        names = {each.ifindex: each.name for each in read_interfaces(netlink)}
        places = {each.address: names[each.ifindex] for each in read_addresses(netlink)}
    listens: dict[Address, list[str]] = {}
    with SockDiag() as diag:
        for protocol in (Protocol.TCP, Protocol.UDP):
            for address, port in sorted(diag.waiting(protocol)):
                listens.setdefault(address, []).append(f"{port}/{protocol.name}")
    return {
        address: OwnAddress(device, tuple(listens.get(address, ())))
        for address, device in places.items()
    }


def check_addresses(maps: MapSet, own: Mapping[Address, OwnAddress]) -> list[Finding]:
    """ClusterIPs and external addresses that are also this node's own. MapError."""
    states = Mirror(maps["lb_addr_flags"])
    states.load()
    words = {
        Address(key): AddrRecord.unpack(states[int.from_bytes(value, byteorder)]).flags
        for key, value in maps["lb_addrs"].items()
    }
    both = [address for address in sorted(words) if words[address] & AddrFlag.LB_ADDR_NODE]
    found = [
        each
        for address in both
        for each in _judge(format_address(address), words[address], own.get(address, OwnAddress()))
    ]
    vips = sum(word & AddrFlag.LB_ADDR_CLUSTER_IP != 0 for word in words.values())
    return all_well(ADDRESSES, f"none of {vips} ClusterIPs is left on {IPVS_DEVICE}", found)


def _judge(place: str, word: int, own: OwnAddress) -> Iterator[Finding]:
    if word & AddrFlag.LB_ADDR_CLUSTER_IP:
        yield _judge_cluster_ip(place, own)
    if word & AddrFlag.LB_ADDR_EXTERNAL:
        what = "is an external address of a Service and one of this node: both serve their ports"
        yield Finding(Severity.NOTE, ADDRESSES, place, what)


def _judge_cluster_ip(place: str, own: OwnAddress) -> Finding:
    """A DNS cache on the node has one on purpose; kube-proxy in ipvs mode leaves all of them."""
    what = f"is a ClusterIP and an address of {own.device}"
    if own.device == IPVS_DEVICE:
        return Finding(Severity.WARNING, ADDRESSES, place, what, _TAKE_AWAY)
    if own.listens:
        what = f"{what}, where processes listen on {examples(own.listens)}"
    else:
        what = f"{what}, where no process listens: the Service serves its ports"
    return Finding(Severity.NOTE, ADDRESSES, place, what)

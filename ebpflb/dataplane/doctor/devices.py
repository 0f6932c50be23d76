# SPDX-License-Identifier: Apache-2.0
"""The devices: has each our programs, in the right order with others', and is one forgotten."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.clsact import Clsact
from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.attach.program_order import Neighbour, Order, at_device, order_of
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.interfaces import (
    Interface,
    InterfaceAddress,
    default_source,
    read_addresses,
    read_interfaces,
)
from ebpflb.dataplane.kernel.netlink import Rtnetlink
from ebpflb.model.address import Address, Family

CHECK = "devices"

_ATTACH = "start the agent, which attaches it; while it runs its log says why not"
_NAME_IT = "name it with --host-devices"
_NO_UPLINK = ("dummy", "bridge", "vrf")
# What stands on the wrong side of ours, by direction.
_MISPLACED = {TcDirection.INGRESS: "before", TcDirection.EGRESS: "after"}
_ADVICE = {
    TcDirection.INGRESS: "what it drops or redirects does not get to ours: attach it after ours",
    TcDirection.EGRESS: "it sees replies that ours has changed: attach it before ours",
}


class Hooked(NamedTuple):
    """One direction of one device."""

    device: str
    direction: TcDirection
    order: Order


def check_devices(network: NetworkState, links: Path, pinned: Collection[int]) -> list[Finding]:
    """Every device of the current network namespace. OSError, AttachError."""
    with Rtnetlink() as netlink:
        hooked = list(_hooked(netlink, network.devices.values(), links, pinned))
        routed = [default_source(netlink, family) for family in Family]
        unnamed = uplinks_without_name(
            read_interfaces(netlink), read_addresses(netlink), routed, network.devices
        )
    return [*judge(hooked), *unnamed]


def judge(hooked: Collection[Hooked]) -> list[Finding]:
    """Programs that are missing, and those of others, each with its devices."""
    found = [*_missing(hooked), *_others(hooked)]
    count = len({each.device for each in hooked})
    return all_well(CHECK, f"{count} devices have our programs, both ways", found)


def uplinks_without_name(
    interfaces: Iterable[Interface],
    addresses: Iterable[InterfaceAddress],
    routed: Collection[Address | None],
    served: Mapping[int, Device],
) -> Iterator[Finding]:
    """Devices with the address that the default route sends from, which no pattern names."""
    sources = {each.ifindex for each in addresses if each.address in routed}
    for each in interfaces:
        known = each.loopback or each.kind in _NO_UPLINK or each.ifindex in served
        if each.ifindex in sources and not (known or each.upper):
            what = "the default route leaves by it, and no pattern of a host device names it"
            yield Finding(Severity.WARNING, CHECK, each.name, what, _NAME_IT)


def _hooked(
    netlink: Rtnetlink, devices: Iterable[Device], links: Path, pinned: Collection[int]
) -> Iterator[Hooked]:
    clsact = Clsact(netlink, links)
    qdiscs = clsact.qdiscs()
    for device in devices:
        filters = clsact if device.ifindex in qdiscs else None
        for direction in TcDirection:
            every = at_device(device.ifindex, direction, filters, pinned)
            yield Hooked(device.name, direction, order_of(every))


def _missing(hooked: Iterable[Hooked]) -> Iterator[Finding]:
    for each in hooked:
        if not each.order.ours:
            what = f"no program of ours at {each.direction}"
            yield Finding(Severity.ERROR, CHECK, each.device, what, _ATTACH)


def _others(hooked: Iterable[Hooked]) -> Iterator[Finding]:
    devices = defaultdict[tuple[Neighbour, str, TcDirection], list[str]](list)
    for each in hooked:
        if each.order.ours:
            for way, others in (("before", each.order.before), ("after", each.order.after)):
                for other in others:
                    devices[other, way, each.direction].append(each.device)
    for (other, way, direction), names in devices.items():
        what = f"{other.title} runs {way} ours at {direction}"
        if _MISPLACED[direction] == way:
            advice = _ADVICE[direction]
            yield Finding(Severity.WARNING, CHECK, examples(names), what, advice)
        else:
            yield Finding(Severity.NOTE, CHECK, examples(names), what)

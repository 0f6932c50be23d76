# SPDX-License-Identifier: Apache-2.0
"""Our programs at the cgroup's socket hooks and at devices, and those before or after them."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.attachments import (
    HookProgram,
    ProgramOrder,
    at_cgroup,
    at_device,
    order_of,
)
from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, TcDirection
from ebpflb.dataplane.attach.strays import Stray, find_strays, summary
from ebpflb.dataplane.attach.tc import Clsact
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.rtnetlink import (
    Interface,
    InterfaceAddress,
    Rtnetlink,
    default_routes,
    read_addresses,
    read_interfaces,
)
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Address

SOCKETS = "sockets"

_ATTACH_HOOK = "the agent attaches it when it starts: see `ebpflb status`, then its log"
_SWITCH_OFF = "turn off its Service load balancing: it and ebpflb choose endpoints independently"


def check_sockets(cgroup: Path, pinned: Collection[int]) -> list[Finding]:
    """Checks every hook at the cgroup; `pinned`: the ids of our programs in force. OSError."""
    with owned(os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)) as target:
        orders = {
            name: order_of(at_cgroup(target, attach_type, pinned))
            for name, attach_type in CGROUP_HOOKS.items()
        }
    return judge_sockets(cgroup, orders)


def judge_sockets(cgroup: Path, orders: Mapping[str, ProgramOrder]) -> list[Finding]:
    """`orders`: by the name of our program for each hook."""
    place = f"cgroup {cgroup}"
    found = list(_others_at_hooks(place, orders))
    if missing := [name.removeprefix("lb_") for name, order in orders.items() if not order.ours]:
        what = f"hooks without our program: {', '.join(missing)}"
        found.insert(0, Finding(Severity.ERROR, SOCKETS, place, what, _ATTACH_HOOK))
    return all_well(SOCKETS, f"all {len(orders)} hooks are at {place}", found)


def _others_at_hooks(place: str, orders: Mapping[str, ProgramOrder]) -> Iterator[Finding]:
    for way in ("before", "after"):
        hooks = defaultdict[HookProgram, list[str]](list)
        for name, order in orders.items():
            others: Sequence[HookProgram] = getattr(order, way)
            for each in (one for one in others if not one.is_ebpflb):
                hooks[each].append(name.removeprefix("lb_"))
        for each, names in hooks.items():
            what = f"{each.title} runs {way} ours at {examples(names)}"
            if each.translates:
                yield Finding(Severity.WARNING, SOCKETS, place, what, _SWITCH_OFF)
            else:
                yield Finding(Severity.NOTE, SOCKETS, place, what)


def check_strays(root: Path, cgroup: Path) -> list[Finding]:
    """Checks for a second set of our programs; `root`: of the pins. OSError, AttachError."""
    return list(judge_strays(find_strays(root, {os.stat(cgroup).st_ino})))


def judge_strays(strays: Sequence[Stray]) -> Iterator[Finding]:
    """Programs of ebpflb that belong to other pins: an error wherever they are."""
    for check in (SOCKETS, DEVICES):
        there = [each for each in strays if bool(each.device) == (check == DEVICES)]
        if there:
            places = dict.fromkeys(f"{each.hook} {each.device}".strip() for each in there)
            yield Finding(Severity.ERROR, check, examples(places), summary(there), _ONE_AGENT)


DEVICES = "devices"

_ONE_AGENT = (
    "stop the other agent, if one runs; this node's agent then takes its programs off within a "
    "minute"
)
_ATTACH_DEVICE = "start the agent, which attaches it; if it already runs, its log says why not"
_NAME_IT = "name it with --host-devices"
_RAISE_MTU = "for IPv6, set 1280 or more and add the addresses again"
_IPV6_LEAST_MTU = 1280  # RFC 8200 5
_NO_UPLINK = ("dummy", "bridge", "vrf")
# Where programs of others are on the wrong side of ours, by direction.
_MISPLACED = {TcDirection.INGRESS: "before", TcDirection.EGRESS: "after"}
_ADVICE = {
    TcDirection.INGRESS: "what it drops or redirects never reaches ours: attach it after ours",
    TcDirection.EGRESS: "it sees replies already rewritten by ours: attach it before ours",
}


class Hooked(NamedTuple):
    device: str
    direction: TcDirection
    order: ProgramOrder


def check_devices(network: NetworkState, links: Path, pinned: Collection[int]) -> list[Finding]:
    """Checks every device of the current network namespace. OSError, AttachError."""
    with Rtnetlink() as netlink:
        hooked = list(_hooked(netlink, network.devices.values(), links, pinned))
        routed = [route.source for route in default_routes(netlink).values()]
        unnamed = uplinks_without_name(
            read_interfaces(netlink), read_addresses(netlink), routed, network
        )
        found = [*judge_devices(hooked), *unnamed]
    return [*found, *without_ipv6(network), *kinds_of_devices(network)]


def judge_devices(hooked: Collection[Hooked]) -> list[Finding]:
    """Missing programs, and programs of others, each with its devices."""
    missing = [
        Finding(
            Severity.ERROR,
            DEVICES,
            each.device,
            f"no program of ours at {each.direction}",
            _ATTACH_DEVICE,
        )
        for each in hooked
        if not each.order.ours
    ]
    found = [*missing, *_others_at_devices(hooked)]
    count = len({each.device for each in hooked})
    return all_well(DEVICES, f"{count} devices have our programs in both directions", found)


def uplinks_without_name(
    interfaces: Iterable[Interface],
    addresses: Iterable[InterfaceAddress],
    routed: Collection[Address | None],
    network: NetworkState,
) -> Iterator[Finding]:
    """Devices that were left out although they have the default route's source address."""
    sources = {each.ifindex for each in addresses if each.address in routed}
    for each in interfaces:
        known = each.loopback or each.kind in _NO_UPLINK or each.ifindex in network.devices
        if each.ifindex in sources and not (known or each.upper):
            why = network.left_out.get(each.name, "it is new")
            what = f"the default route uses it, but it is left out: {why}"
            yield Finding(Severity.WARNING, DEVICES, each.name, what, _NAME_IT)


def without_ipv6(network: NetworkState) -> Iterator[Finding]:
    """Host devices without IPv6 in the kernel, because their MTU is too small."""
    for device in network.devices.values():
        if device.kind == DeviceKind.LB_DEVICE_HOST and 0 < device.mtu < _IPV6_LEAST_MTU:
            what = f"its MTU of {device.mtu} is less than IPv6 needs: it has no IPv6 addresses"
            yield Finding(Severity.NOTE, DEVICES, device.name, what, _RAISE_MTU)


def kinds_of_devices(network: NetworkState) -> Iterator[Finding]:
    """How each device was classified, and why."""
    names = defaultdict[str, list[str]](list)
    for device in network.devices.values():
        is_host = device.kind == DeviceKind.LB_DEVICE_HOST
        names[f"{'host' if is_host else 'workload'} device: {device.why}"].append(device.name)
    for name, why in network.left_out.items():
        names[f"left out: {why}"].append(name)
    for what, devices in sorted(names.items()):
        yield Finding(Severity.NOTE, DEVICES, examples(devices), what)


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


def _others_at_devices(hooked: Iterable[Hooked]) -> Iterator[Finding]:
    devices = defaultdict[tuple[HookProgram, str, TcDirection], list[str]](list)
    for each in hooked:
        if each.order.ours:
            for way, others in (("before", each.order.before), ("after", each.order.after)):
                for other in (one for one in others if not one.is_ebpflb):
                    devices[other, way, each.direction].append(each.device)
    for (other, way, direction), names in devices.items():
        what = f"{other.title} runs {way} ours at {direction}"
        if _MISPLACED[direction] == way:
            yield Finding(Severity.WARNING, DEVICES, examples(names), what, _ADVICE[direction])
        else:
            yield Finding(Severity.NOTE, DEVICES, examples(names), what)

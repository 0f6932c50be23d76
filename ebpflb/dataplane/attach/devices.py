# SPDX-License-Identifier: Apache-2.0
"""The devices and addresses of this network namespace as programs need them, and their changes."""

import errno
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from ebpflb.dataplane.attach.classify import ETHERNET, Patterns, Routing, classify
from ebpflb.dataplane.attach.forwarding import PolicyEngine, PolicyRules, policy_engine
from ebpflb.dataplane.attach.node_addresses import (
    ListenAddresses,
    bound_address,
    named_addresses,
    node_addresses,
    node_port_filter,
)
from ebpflb.dataplane.attach.source_address import (
    best_source,
    by_subnet,
    cut_off,
    primary_addresses,
)
from ebpflb.dataplane.kernel.rtnetlink import (
    Interface,
    InterfaceAddress,
    Rtnetlink,
    default_routes,
    drop_other_routes,
    read_addresses,
    read_interfaces,
)
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family
from ebpflb.model.source_ranges import Prefix

_LONGEST_WAIT = 20
# The contents of an event are not used, so they may be truncated.
_EVENT_BYTES = 1
_NO_ADDRESSES: Mapping[Family, Address] = MappingProxyType({})


class DeviceSettings(Protocol):
    """The settings used here.

    Patterns of device names (see classify.Patterns). nodeport_addresses: CIDRs and words, or
    empty for all. bind_address: the primary address of its family, unless empty or unspecified.
    """

    @property
    def host_devices(self) -> Sequence[str]: ...

    @property
    def workload_devices(self) -> Sequence[str]: ...

    @property
    def nodeport_addresses(self) -> Sequence[str]: ...

    @property
    def bind_address(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Device:
    """A device that gets our programs. snat4 and snat6: its SNAT addresses, None if it has none.

    `subnets`: SNAT addresses by next hop (see `by_subnet()`), used instead. `netnsid` is our number
    for the namespace of a veth's peer; `mtu` in bytes, 0 if unknown. `link`: rtnetlink's kind of
    the device ("veth", "bond"; empty: a card). `mac` is empty without Ethernet. `why`: the reason
    for its `kind`.
    """

    ifindex: int
    name: str
    kind: DeviceKind
    ethernet: bool
    up: bool
    snat4: Address | None = None
    snat6: Address | None = None
    subnets: Mapping[Prefix, Address] = field(default_factory=dict)
    netnsid: int | None = None
    mtu: int = 0
    link: str = ""
    mac: bytes = b""
    has_vlans: bool = False
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The state of the current network namespace. Equal states need no work.

    `left_out`: other devices by name, and why they do not get our programs. `policy_engine`: what
    enforces network policies here, None if nothing known does. `cut_off`: the node's addresses on
    devices that are down while the default route leads over another one.
    """

    devices: Mapping[int, Device]
    node_addresses: Mapping[Address, AddrFlag]
    primary: Mapping[Family, Address]
    left_out: Mapping[str, str] = field(default_factory=dict, compare=False)
    policy_engine: PolicyEngine | None = None
    cut_off: Set[Address] = frozenset()

    def reachable(self) -> Set[Address]:
        """The node's addresses to which replies come."""
        return self.node_addresses.keys() - self.cut_off


def snapshot(
    settings: DeviceSettings,
    node_ips: Mapping[Family, Address] = _NO_ADDRESSES,
    rules: PolicyRules | None = None,
) -> NetworkState:
    """Read the network namespace of the calling thread. ProbeError if netlink fails.

    Every address of the node except loopback may accept NodePorts. `node_ips`: the node's addresses
    according to the API; they are primary for NodePorts, even if nothing can be sent from them.
    `rules`: pass your own if you call this often.
    """
    patterns = Patterns(settings.host_devices, settings.workload_devices)
    try:
        with Rtnetlink() as netlink:
            interfaces, addresses = read_interfaces(netlink), read_addresses(netlink)
            default = default_routes(netlink)
    except OSError as error:
        raise ProbeError(f"cannot read devices and addresses by netlink: {error}") from error
    leaving = {route.ifindex for route in default.values()}
    judged = classify(interfaces, patterns, Routing(addresses, leaving))
    kinds = {ifindex: found.kind for ifindex, found in judged.items() if found.kind}
    bound = bound_address(settings.bind_address)
    routed = {family: route.source for family, route in default.items()}
    primary = {**primary_addresses(routed, addresses, kinds), **bound}
    by_device = _by_device(addresses)
    tagged = {each.lower for each in interfaces if each.kind == "vlan"}
    devices = {
        each.ifindex: replace(
            _device(each, kinds[each.ifindex], by_device[each.ifindex], primary),
            has_vlans=each.ifindex in tagged,
            why=judged[each.ifindex].why,
        )
        for each in interfaces
        if each.ifindex in kinds
    }
    left_out = {
        each.name: judged[each.ifindex].why for each in interfaces if each.ifindex not in kinds
    }
    accepts = node_port_filter(settings.nodeport_addresses, {**primary, **node_ips, **bound})
    return NetworkState(
        devices,
        node_addresses(addresses, accepts),
        primary,
        left_out,
        policy_engine((each.name for each in interfaces), rules or PolicyRules()),
        cut_off(addresses, {each.ifindex for each in interfaces if not each.running}, default),
    )


def with_present_policy(network: NetworkState, rules: PolicyRules) -> NetworkState:
    """The same, with the current policy engine."""
    names = (*(each.name for each in network.devices.values()), *network.left_out)
    return replace(network, policy_engine=policy_engine(names, rules))


def listen_addresses(settings: DeviceSettings) -> ListenAddresses:
    """Where to listen so that the port is reachable wherever NodePorts are. ProbeError."""
    wanted = settings.nodeport_addresses
    primary = snapshot(settings).primary if "primary" in wanted else {}
    try:
        with Rtnetlink() as netlink:
            return named_addresses(wanted, primary, read_addresses(netlink) if wanted else ())
    except OSError as error:
        raise ProbeError(f"cannot read addresses by netlink: {error}") from error


def _device(
    interface: Interface,
    kind: DeviceKind,
    own: Sequence[InterfaceAddress],
    primary: Mapping[Family, Address],
) -> Device:
    return Device(
        ifindex=interface.ifindex,
        name=interface.name,
        kind=kind,
        ethernet=interface.header == ETHERNET,
        up=interface.up,
        snat4=best_source(own, Family.IPV4) or primary.get(Family.IPV4),
        snat6=best_source(own, Family.IPV6) or primary.get(Family.IPV6),
        subnets=_subnets(kind, own),
        netnsid=interface.netnsid,
        mtu=interface.mtu,
        link=interface.kind,
        mac=interface.mac if interface.header == ETHERNET else b"",
    )


def _subnets(kind: DeviceKind, own: Sequence[InterfaceAddress]) -> Mapping[Prefix, Address]:
    if kind != DeviceKind.LB_DEVICE_HOST:
        return {}
    return {**by_subnet(own, Family.IPV4), **by_subnet(own, Family.IPV6)}


def _by_device(addresses: Iterable[InterfaceAddress]) -> defaultdict[int, list[InterfaceAddress]]:
    grouped = defaultdict(list)
    for found in addresses:
        grouped[found.ifindex].append(found)
    return grouped


class NetworkWatch:
    """A thread that calls `callback` when links, addresses or default routes may have changed.

    A burst of events is one call, `settle` seconds after its last event and at most 20 times that
    after its first. Lost events (ENOBUFS) also cause a call, as the callback takes a full snapshot.
    Routes may change by the thousand: the kernel only passes on those with prefix length 0.

    Create the watch before the first snapshot, in a thread that is in the right namespace. The
    callback runs in the watching thread and must not raise.
    """

    def __init__(self, callback: Callable[[], None], *, settle: float = 0.02) -> None:
        # Imported here, because most commands do not need it (see Rtnetlink.iproute()).
        from pyroute2.netlink.rtnl import (
            RTMGRP_IPV4_IFADDR,
            RTMGRP_IPV4_ROUTE,
            RTMGRP_IPV6_IFADDR,
            RTMGRP_IPV6_ROUTE,
            RTMGRP_LINK,
        )
        from pyroute2.netlink.rtnl.iprsocket import IPRSocket

        self._callback = callback
        self._settle = settle
        self._events = IPRSocket()
        drop_other_routes(self._events)
        addresses, routes = (
            RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
            RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE,
        )
        self._events.bind(RTMGRP_LINK | addresses | routes)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="device-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its socket; call it once, not from the callback."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._events.close()
        os.close(self._wake)

    def _run(self) -> None:
        while self._wait(None):
            self._drain()
            self._callback()

    def _wait(self, timeout: float | None) -> bool:
        """Whether there is an event; False after the timeout or if the watch is ending."""
        ready, _, _ = select.select([self._events, self._wake], [], [], timeout)
        return bool(ready) and self._wake not in ready

    def _drain(self) -> None:
        deadline = time.monotonic() + self._settle * _LONGEST_WAIT
        self._receive()
        while time.monotonic() < deadline and self._wait(self._settle):
            self._receive()

    def _receive(self) -> None:
        try:
            self._events.socket.recv(_EVENT_BYTES)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise

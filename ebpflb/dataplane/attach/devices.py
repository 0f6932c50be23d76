# SPDX-License-Identifier: Apache-2.0
"""Which devices get our programs, which addresses the node has, and when either changes.

A device is a *workload* device when it is the host's end of a pod's veth, and a *host* device when
traffic of the node itself, of other nodes or of outside clients comes and goes by it. Everything
else is left alone. By default:

workload  veth* (CNI plugins ptp and bridge, flannel, kube-router), cali* (Calico), lxc* (LXC),
          eni* (AWS VPC CNI), azv* (Azure CNI), gke* (GKE). Looked at first, because eni* also looks
          like a network card. A bridge is never one, whatever its name (lxcbr0).
host      network cards (eth* en* em1 p1p1 wl* ww*), bond*, team* and vlan*; and tunnels to other
          nodes (vxlan* flannel* geneve* genev_* gre* ipip* tunl* tun* ip6tnl* sit* wg* wireguard*
          tailscale*), since a NodePort or a reply may come in by them.

Names are shell patterns. Structure comes after names:
- A port of a bridge, bond or team is no host device: the packets belong to the device above, which
  has the addresses. (A VRF is no such device: addresses stay on its ports.)
- A bridge is a host device if one of its ports would be (a node whose card hangs on br0), or if the
  patterns name it. cni0, docker0, virbr0 and the like have pods, containers or machines as their
  only ports. Attached there, our programs would see the pods' packets a second time.
- Devices whose packets begin with neither an Ethernet nor an IP header are left out, as are
  workload devices without an Ethernet header, and loopback.
"""

import errno
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple, Protocol

from ebpflb.dataplane.attach.node_addresses import (
    ListenAddresses,
    bound_address,
    named_addresses,
    node_addresses,
    node_port_filter,
)
from ebpflb.dataplane.kernel.rtnetlink import (
    AddressFlag,
    Interface,
    InterfaceAddress,
    Rtnetlink,
    default_source,
    read_addresses,
    read_interfaces,
)
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family, format_address

DEFAULT_WORKLOAD_DEVICES = ("veth*", "cali*", "lxc*", "eni*", "azv*", "gke*")
DEFAULT_HOST_DEVICES = (
    *("eth*", "en*", "em[0-9]*", "p[0-9]*p[0-9]*", "wl*", "ww*", "bond*", "team*", "vlan*"),
    *("vxlan*", "flannel*", "geneve*", "genev_*", "gre*", "ipip*", "tunl*", "tun*", "ip6tnl*"),
    *("sit*", "wg*", "wireguard*", "tailscale*"),
)

_ETHERNET = 1
# ARPHRD_PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE: tc sees the IP header first.
_IP_FIRST = (512, 519, 768, 769, 776, 778, 823, 65534)
_NO_SOURCE = AddressFlag.DADFAILED | AddressFlag.DEPRECATED
_LONGEST_PREFIX = {Family.IPV4: 32, Family.IPV6: 128}
_LONGEST_WAIT = 20
# What an event says is not read, so it may be cut off.
_EVENT_BYTES = 1
_NO_ADDRESSES: Mapping[Family, Address] = MappingProxyType({})


class DeviceSettings(Protocol):
    """The settings that matter here.

    Patterns of device names, the default ones if empty. nodeport_addresses: ("primary",), CIDRs, or
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
    """A device that gets our programs. snat4 and snat6: what it masquerades with, None = nothing.

    `netnsid` is our number for the namespace of a veth's peer.
    """

    ifindex: int
    name: str
    kind: DeviceKind
    ethernet: bool
    up: bool
    snat4: Address | None = None
    snat6: Address | None = None
    netnsid: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkState:
    """What the current network namespace looks like. Equal states need no work."""

    devices: Mapping[int, Device]
    node_addresses: Mapping[Address, AddrFlag]
    primary: Mapping[Family, Address]


class Patterns(NamedTuple):
    """Shell patterns of device names."""

    host: Sequence[str] = DEFAULT_HOST_DEVICES
    workload: Sequence[str] = DEFAULT_WORKLOAD_DEVICES

    def is_host(self, name: str) -> bool:
        return _matches(name, self.host) and not self.is_workload(name)

    def is_workload(self, name: str) -> bool:
        return _matches(name, self.workload)


def snapshot(
    settings: DeviceSettings, node_ips: Mapping[Family, Address] = _NO_ADDRESSES
) -> NetworkState:
    """Read the network namespace of the calling thread. ProbeError when netlink fails.

    Every address of the node except loopback ones may accept NodePorts. `node_ips`: what the API
    calls the node's addresses; the primary one for NodePorts, though nothing may be sent from it.
    """
    patterns = Patterns(
        settings.host_devices or DEFAULT_HOST_DEVICES,
        settings.workload_devices or DEFAULT_WORKLOAD_DEVICES,
    )
    try:
        with Rtnetlink() as netlink:
            interfaces, addresses = read_interfaces(netlink), read_addresses(netlink)
            routed = {family: default_source(netlink, family) for family in Family}
    except OSError as error:
        raise ProbeError(f"cannot read devices and addresses by netlink: {error}") from error
    kinds = classify(interfaces, patterns)
    bound = bound_address(settings.bind_address)
    primary = {**primary_addresses(routed, addresses, kinds), **bound}
    by_device = _by_device(addresses)
    devices = {
        interface.ifindex: _device(
            interface, kinds[interface.ifindex], by_device[interface.ifindex], primary
        )
        for interface in interfaces
        if interface.ifindex in kinds
    }
    accepts = node_port_filter(settings.nodeport_addresses, {**primary, **node_ips, **bound})
    return NetworkState(devices, node_addresses(addresses, accepts), primary)


def listen_addresses(settings: DeviceSettings) -> ListenAddresses:
    """Where a server listens that is reached where NodePorts are. ProbeError when netlink fails."""
    wanted = settings.nodeport_addresses
    if "primary" in wanted:
        primary = snapshot(settings).primary
        return {family: [format_address(address)] for family, address in primary.items()}
    try:
        with Rtnetlink() as netlink:
            return named_addresses(wanted, read_addresses(netlink) if wanted else ())
    except OSError as error:
        raise ProbeError(f"cannot read addresses by netlink: {error}") from error


def classify(interfaces: Iterable[Interface], patterns: Patterns) -> dict[int, DeviceKind]:
    """The kind of each device that gets our programs, by ifindex."""
    interfaces = tuple(interfaces)
    uplinked = {port.upper for port in interfaces if port.upper and patterns.is_host(port.name)}
    kinds = {
        interface.ifindex: _kind(interface, patterns, interface.ifindex in uplinked)
        for interface in interfaces
    }
    return {ifindex: kind for ifindex, kind in kinds.items() if kind}


def best_source(addresses: Iterable[InterfaceAddress], family: Family) -> Address | None:
    """The address to masquerade with, of those of one device.

    Global scope, valid, not deprecated; rather none that is secondary, temporary, or the only one
    in its prefix, because tools that announce VIPs add them that way.
    """
    usable = [found for found in addresses if found.family == family and _is_source(found)]
    best = min(usable, key=_source_rank, default=None)
    return best.address if best else None


def primary_addresses(
    routed: Mapping[Family, Address | None],
    addresses: Sequence[InterfaceAddress],
    kinds: Mapping[int, DeviceKind],
) -> dict[Family, Address]:
    """One address of the node per family: the default route's, else that of a host device."""
    hosts = sorted(ifindex for ifindex, kind in kinds.items() if kind == DeviceKind.LB_DEVICE_HOST)
    by_device = _by_device(addresses)
    ranked = [found for ifindex in hosts for found in by_device[ifindex]]
    chosen = {family: routed.get(family) or best_source(ranked, family) for family in Family}
    return {family: address for family, address in chosen.items() if address}


def _kind(interface: Interface, patterns: Patterns, uplinked: bool) -> DeviceKind | None:
    known_header = interface.header == _ETHERNET or interface.header in _IP_FIRST
    if interface.loopback or not known_header:
        return None
    is_bridge = interface.kind == "bridge"
    if patterns.is_workload(interface.name) and not is_bridge:
        return DeviceKind.LB_DEVICE_WORKLOAD if interface.header == _ETHERNET else None
    if interface.upper and interface.upper_kind != "vrf":
        return None
    if patterns.is_host(interface.name) or (is_bridge and uplinked):
        return DeviceKind.LB_DEVICE_HOST
    return None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


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
        ethernet=interface.header == _ETHERNET,
        up=interface.up,
        snat4=best_source(own, Family.IPV4) or primary.get(Family.IPV4),
        snat6=best_source(own, Family.IPV6) or primary.get(Family.IPV6),
        netnsid=interface.netnsid,
    )


def _by_device(addresses: Iterable[InterfaceAddress]) -> defaultdict[int, list[InterfaceAddress]]:
    grouped = defaultdict(list)
    for found in addresses:
        grouped[found.ifindex].append(found)
    return grouped


def _is_source(found: InterfaceAddress) -> bool:
    tentative = AddressFlag.TENTATIVE in found.flags and AddressFlag.OPTIMISTIC not in found.flags
    return found.scope == 0 and not tentative and not found.flags & _NO_SOURCE


def _source_rank(found: InterfaceAddress) -> tuple[bool, bool]:
    lone = found.prefix_length == _LONGEST_PREFIX[found.family]
    return AddressFlag.SECONDARY in found.flags, lone


class NetworkWatch:
    """A thread that calls `callback` when links or addresses of its namespace may have changed.

    A burst of events is one call, `settle` seconds after its last event and at most 20 times that
    after its first. Lost events (ENOBUFS) are a call as well: whoever is called takes a snapshot.
    Routes are not watched, they may change by the thousand: a default route that moves to another
    device is noticed at the next event.

    Make the watch before the first snapshot, in a thread that is in the right namespace. The
    callback runs in the watching thread and must not raise.
    """

    def __init__(self, callback: Callable[[], None], *, settle: float = 0.02) -> None:
        # Imported here, because most commands do without it (see Rtnetlink.iproute()).
        from pyroute2.netlink.rtnl import (
            RTMGRP_IPV4_IFADDR,
            RTMGRP_IPV6_IFADDR,
            RTMGRP_LINK,
        )
        from pyroute2.netlink.rtnl.iprsocket import IPRSocket

        self._callback = callback
        self._settle = settle
        self._events = IPRSocket()
        self._events.bind(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="device-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its socket; to be called once, not from the callback."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._events.close()
        os.close(self._wake)

    def _run(self) -> None:
        while self._wait(None):
            self._drain()
            self._callback()

    def _wait(self, timeout: float | None) -> bool:
        """Whether there is an event; False when the time is over or the watch ends."""
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

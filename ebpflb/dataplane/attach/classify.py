# SPDX-License-Identifier: Apache-2.0
"""Which devices get our programs, by what the device is or by patterns in the settings.

A *workload* device is the host's end of a pod's device. A *host* device carries traffic of the node
itself, of other nodes or of outside clients. Everything else is left out.

workload  a veth or netkit whose peer is in another network namespace, even if it is a port of a
          bridge or of Open vSwitch.
host      a network card, bond, team or VLAN; a tunnel; the device of the default route; a bridge
          with one of these among its ports; a device with an address of the node, if its kind does
          not decide (an Open vSwitch bridge such as br-ex, a macvlan).

A node may be a container, whose uplink is a veth into another namespace. The default route or an
address with a subnet identifies it: a pod's veth has no address or a single one (/32, /128), as it
is only the pods' gateway. Where structure cannot decide, the name does.

- A port of a bridge, bond, team or Open vSwitch is not a host device: the packets belong to the
  upper device, which has the addresses. (A VRF is different: addresses stay on its ports.)
- cni0, docker0, virbr0 and the like have only pods, containers or machines as ports. Attached
  there, our programs would see the pods' packets a second time.
- Devices whose packets start with neither an Ethernet nor an IP header are left out, as are
  workload devices without an Ethernet header, and loopback.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from ebpflb.dataplane.kernel.rtnetlink import Interface, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Family

HOST, WORKLOAD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD

ETHERNET = 1
# ARPHRD_PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE: at tc, packets start with IP.
_IP_FIRST = (512, 519, 768, 769, 776, 778, 823, 65534)
_LONGEST_PREFIX = {Family.IPV4: 32, Family.IPV6: 128}
_LINK_LOCAL_4 = bytes(10) + b"\xff\xff\xa9\xfe"

PAIRS = ("veth", "netkit")
# "" is a network card or a virtual function: all other devices have a kind.
_CARDS = {
    "": "a network card",
    "bond": "a bond",
    "team": "a team",
    "vlan": "a VLAN",
    "hsr": "a redundant ring",
    "netdevsim": "a network card",
}
_TUNNELS = (
    *("vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "ipip"),
    *("sit", "ip6tnl", "vti", "vti6", "xfrm", "wireguard", "bareudp", "gtp", "ppp", "wwan"),
)
_LEFT_OUT = {
    "dummy": "a dummy device, which sends nothing",
    "ifb": "an intermediate device for queueing",
    "vrf": "a VRF: its ports have the addresses",
    "nlmon": "a monitor",
}
# Used where structure cannot decide. `vlan*` may be a VLAN or, on AWS, a pod's veth: not listed.
_WORKLOAD_NAMES = ("veth*", "cali*", "lxc*", "eni*", "azv*", "gke*")
_HOST_NAMES = (
    *("eth*", "en*", "em[0-9]*", "p[0-9]*p[0-9]*", "wl*", "ww*", "bond*", "team*"),
    *("vxlan*", "flannel*", "geneve*", "genev_*", "gre*", "ipip*", "tunl*", "tun*", "ip6tnl*"),
    *("sit*", "wg*", "wireguard*", "tailscale*"),
)


class Patterns(NamedTuple):
    """Shell patterns of device names; an empty list leaves the choice to structure.

    A leading + means: in addition to what structure finds.
    """

    host: Sequence[str] = ()
    workload: Sequence[str] = ()

    def names(self, name: str, kind: DeviceKind) -> bool:
        """Whether a pattern matches this device."""
        return _matches(name, (each.removeprefix("+") for each in self._of(kind)))

    def are_all(self, kind: DeviceKind) -> bool:
        """Whether only matching devices are of this kind."""
        patterns = self._of(kind)
        return bool(patterns) and not any(each.startswith("+") for each in patterns)

    def _of(self, kind: DeviceKind) -> Sequence[str]:
        return self.host if kind is HOST else self.workload


class Judgement(NamedTuple):
    """kind: None for a device that is left out. why: for users."""

    kind: DeviceKind | None
    why: str


class Routing(NamedTuple):
    """What distinguishes the node's own devices from those of pods."""

    addresses: Sequence[InterfaceAddress] = ()
    # The devices of the default routes.
    default: Collection[int] = ()


def classify(
    interfaces: Iterable[Interface], patterns: Patterns, routing: Routing
) -> dict[int, Judgement]:
    """A judgement about each device, by ifindex."""
    judge = _Judge(tuple(interfaces), patterns, routing)
    return {each.ifindex: judge.whole(each) for each in judge.interfaces}


class _Judge:
    def __init__(
        self, interfaces: Sequence[Interface], patterns: Patterns, routing: Routing
    ) -> None:
        self.interfaces = interfaces
        self._patterns = patterns
        self._default = routing.default
        self._addresses: Mapping[int, list[InterfaceAddress]] = defaultdict(list)
        for address in routing.addresses:
            self._addresses[address.ifindex].append(address)
        self._names = {each.ifindex: each.name for each in interfaces}
        self._uplinks = {
            each.upper: each.name for each in interfaces if each.upper and self._is_uplink(each)
        }

    def whole(self, device: Interface) -> Judgement:
        """First what is certain, then the settings, then structure."""
        if device.loopback:
            return Judgement(None, "loopback")
        if device.header != ETHERNET and device.header not in _IP_FIRST:
            return Judgement(None, f"its packets have a header of type {device.header}")
        found = self._named(device) or self._found(device)
        if found.kind is WORKLOAD and device.header != ETHERNET:
            return Judgement(None, "a pod's device without Ethernet headers")
        return found

    def _named(self, device: Interface) -> Judgement | None:
        if self._patterns.names(device.name, WORKLOAD) and device.kind != "bridge":
            return Judgement(WORKLOAD, "named by workload-devices")
        if self._patterns.names(device.name, HOST):
            return self._port(device) or Judgement(HOST, "named by host-devices")
        return None

    def _found(self, device: Interface) -> Judgement:
        found = self._by_structure(device)
        if found.kind is HOST and device.kind == "bridge" and device.ifindex in self._uplinks:
            return found
        if found.kind and self._patterns.are_all(found.kind):
            option = "host-devices" if found.kind is HOST else "workload-devices"
            return Judgement(None, f"not named by {option} ({found.why})")
        return found

    def _by_structure(self, device: Interface) -> Judgement:
        if device.kind in PAIRS:
            return self._pair(device)
        if port := self._port(device):
            return port
        if device.kind in _CARDS:
            card = Judgement(HOST, _CARDS[device.kind])
            return self._carried(device) or _by_workload_name(device) or card
        if device.kind in _TUNNELS or (device.kind == "tun" and device.header != ETHERNET):
            return Judgement(HOST, "a tunnel")
        return self._by_traffic(device)

    def _pair(self, device: Interface) -> Judgement:
        is_pod = device.netnsid is not None and not _has_host_name(device)
        into = Judgement(WORKLOAD, f"a {device.kind} into another network namespace")
        if port := self._port(device):
            return into if is_pod else _by_workload_name(device) or port
        if carried := self._carried(device):
            return carried
        if is_pod:
            return into
        return _by_workload_name(device) or self._own_pair(device)

    def _own_pair(self, device: Interface) -> Judgement:
        if _has_host_name(device):
            return Judgement(HOST, "by its name")
        if any(map(_is_global, self._addresses[device.ifindex])):
            return Judgement(HOST, "an address of the node")
        return Judgement(None, "both ends on this node, without an address")

    def _by_traffic(self, device: Interface) -> Judgement:
        if device.kind == "bridge" and device.ifindex in self._uplinks:
            return Judgement(HOST, f"a bridge with {self._uplinks[device.ifindex]}")
        if device.kind not in _LEFT_OUT and (carried := self._carried(device)):
            return carried
        if device.kind != "bridge" and (named := _by_workload_name(device)):
            return named
        if _has_host_name(device):
            return Judgement(HOST, "by its name")
        if device.kind == "bridge":
            return Judgement(None, "a bridge of only pods, containers or machines")
        return Judgement(None, _LEFT_OUT.get(device.kind, "without an address of the node"))

    def _carried(self, device: Interface) -> Judgement | None:
        """A host device by its route or address; a bridge's address is just its pods' gateway."""
        if device.ifindex in self._default:
            return Judgement(HOST, "the default route")
        own = self._addresses[device.ifindex]
        if device.kind in PAIRS:
            own = [] if _by_workload_name(device) else [each for each in own if _is_subnet(each)]
        if device.kind != "bridge" and any(map(_is_global, own)):
            return Judgement(HOST, "an address of the node")
        return None

    def _port(self, device: Interface) -> Judgement | None:
        if not device.upper or device.upper_kind == "vrf":
            return None
        return Judgement(None, f"a port of {self._names.get(device.upper, 'another device')}")

    def _is_uplink(self, port: Interface) -> bool:
        if self._patterns.names(port.name, WORKLOAD):
            return False
        if self._patterns.names(port.name, HOST) or self._patterns.are_all(HOST):
            return self._patterns.names(port.name, HOST)
        return port.kind in (*_CARDS, *_TUNNELS) or _has_host_name(port)


def _by_workload_name(device: Interface) -> Judgement | None:
    if _matches(device.name, _WORKLOAD_NAMES):
        return Judgement(WORKLOAD, "by its name")
    return None


def _has_host_name(device: Interface) -> bool:
    return _matches(device.name, _HOST_NAMES) and not _matches(device.name, _WORKLOAD_NAMES)


def _is_global(found: InterfaceAddress) -> bool:
    return found.scope == 0 and not found.address.startswith(_LINK_LOCAL_4)


def _is_subnet(found: InterfaceAddress) -> bool:
    return _is_global(found) and found.prefix_length < _LONGEST_PREFIX[found.family]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

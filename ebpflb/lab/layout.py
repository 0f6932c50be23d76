# SPDX-License-Identifier: Apache-2.0
"""Who is in a lab: names, namespaces and addresses, derived from its settings. No I/O.

Lab number i has the ranges 10.(100+i).0.0/16 and fdeb:f1b:i::/48, so that no two labs overlap:

    what                  IPv4                          IPv6
    underlay              10.100.0.0/24                 fdeb:f1b:0::/64
      gateway, client       .1, .2                        ::1, ::2
      node1, node2, ...     .11, .12, ...                 ::11, ::12, ...
    ClusterIPs            10.100.64.0/20                fdeb:f1b:0:40::/112
    load-balancer IPs     10.100.80.0/20                fdeb:f1b:0:50::/64
    pods of node1         10.100.129.0/24               fdeb:f1b:0:101::/64
      their gateway         .1                            ::1
      pod-1-1, pod-1-2      .11, .12                      ::11, ::12
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network

from ebpflb.errors import SettingError

LABS_AT_ONCE = 100
UNDERLAY = "underlay"
CLIENT = "client"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_RANGES = {"nodes": (1, 100), "pods": (0, 200), "port": (1, 65535), "rp_filter": (0, 2)}
# Nodes and pods count from here inside their range.
_FIRST_HOST = {4: 10, 6: 0x10}


class Cni(StrEnum):
    PTP = "ptp"
    BRIDGE = "bridge"
    VXLAN = "vxlan"


class Stack(StrEnum):
    IPV4 = "ipv4"
    IPV6 = "ipv6"
    DUAL = "dual"

    @property
    def versions(self) -> tuple[int, ...]:
        """4, 6 or both; the primary family first."""
        return {"ipv4": (4,), "ipv6": (6,), "dual": (4, 6)}[self.value]


class SeatKind(StrEnum):
    NODE = "node"
    POD = "pod"
    CLIENT = "client"
    UNDERLAY = "underlay"


@dataclass(frozen=True, slots=True)
class LabConfig:
    """The settings of a lab. SettingError names the one that cannot be used.

    pods: per node. port: where the pods serve TCP and UDP. rp_filter: the default, 2 (loose), is
    what systemd and Ubuntu set; with 1 (strict, as on RHEL) a pod of a vxlan lab cannot reach the
    address of another node, because that packet travels outside the tunnel and its answer inside.
    """

    name: str = "lab"
    nodes: int = 2
    pods: int = 3
    cni: Cni = Cni.PTP
    family: Stack = Stack.DUAL
    port: int = 8080
    rp_filter: int = 2
    zones: tuple[str, ...] = ("zone-a", "zone-b")

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingError(
                f"name: {self.name!r} is not 1 to 40 lower-case letters, digits and inner hyphens"
            )
        for name, (first, last) in _RANGES.items():
            value = getattr(self, name)
            if not first <= value <= last:
                raise SettingError(f"{name}: {value} is not between {first} and {last}")
        if not self.zones:
            raise SettingError("zones: name at least one")


@dataclass(frozen=True, slots=True)
class Seat:
    """One namespace. node and number: position, from 1, of the node and of the pod on it, or 0."""

    kind: SeatKind
    name: str
    node: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Ranges:
    """The addresses of one lab in one IP family (version 4 or 6). Nodes and pods count from 1."""

    version: int
    index: int

    @property
    def host_bits(self) -> int:
        return self.underlay().max_prefixlen

    def underlay(self) -> IPv4Network | IPv6Network:
        return self._network("0.0/24", ":/64")

    def services(self) -> IPv4Network | IPv6Network:
        return self._network("64.0/20", "40::/112")

    def external(self) -> IPv4Network | IPv6Network:
        """Load-balancer and external IPs; the client routes them to the first node."""
        return self._network("80.0/20", "50::/64")

    def cluster(self) -> IPv4Network | IPv6Network:
        return self._network("128.0/17", "100::/56")

    def pods(self, node: int) -> IPv4Network | IPv6Network:
        return self._network(f"{128 + node}.0/24", f"{0x100 + node:x}::/64")

    def gateway(self) -> str:
        """The underlay's own address: everybody's default gateway, which forwards nothing."""
        return str(self.underlay()[1])

    def client(self) -> str:
        return str(self.underlay()[2])

    def node(self, node: int) -> str:
        return str(self.underlay()[_FIRST_HOST[self.version] + node])

    def pod_gateway(self, node: int) -> str:
        return str(self.pods(node)[1])

    def pod(self, node: int, pod: int) -> str:
        return str(self.pods(node)[_FIRST_HOST[self.version] + pod])

    def tunnel(self, node: int) -> str:
        """The address of a node's vxlan device: as flannel, the first one of the pod range."""
        return str(self.pods(node)[0])

    def seat(self, seat: Seat) -> str:
        match seat.kind:
            case SeatKind.NODE:
                return self.node(seat.node)
            case SeatKind.POD:
                return self.pod(seat.node, seat.number)
            case SeatKind.CLIENT:
                return self.client()
            case SeatKind.UNDERLAY:
                return self.gateway()

    def _network(self, inside4: str, inside6: str) -> IPv4Network | IPv6Network:
        if self.version == 4:  # noqa: PLR2004 - an IP version is a name
            return ip_network(f"10.{100 + self.index}.{inside4}")
        return ip_network(f"fdeb:f1b:{self.index:x}:{inside6}")


@dataclass(frozen=True, slots=True)
class Layout:
    """All members of a lab, in the order in which they are built. index: 0 to LABS_AT_ONCE - 1."""

    config: LabConfig
    index: int

    @property
    def ranges(self) -> tuple[Ranges, ...]:
        return tuple(Ranges(version, self.index) for version in self.config.family.versions)

    def ranges_of(self, version: int | None) -> Ranges:
        """The ranges of IP version 4 or 6, None: the primary one. SettingError without it."""
        for ranges in self.ranges:
            if version in {None, ranges.version}:
                return ranges
        raise SettingError(f"lab {self.config.name!r} has no IPv{version}")

    def seats(self) -> Iterator[Seat]:
        """All members; the underlay first, because it makes the uplinks of the others."""
        yield Seat(SeatKind.UNDERLAY, UNDERLAY)
        yield from self.nodes()
        for node in self.nodes():
            yield from self.pods(node.node)
        yield Seat(SeatKind.CLIENT, CLIENT)

    def nodes(self) -> Iterator[Seat]:
        for node in range(1, self.config.nodes + 1):
            yield Seat(SeatKind.NODE, f"node{node}", node)

    def pods(self, node: int) -> Iterator[Seat]:
        for pod in range(1, self.config.pods + 1):
            yield Seat(SeatKind.POD, f"pod-{node}-{pod}", node, pod)

    def namespace(self, seat: Seat) -> str:
        return f"{self.config.name}-{seat.name}"

    def addresses(self, seat: Seat) -> tuple[str, ...]:
        return tuple(ranges.seat(seat) for ranges in self.ranges)

    def zone(self, node: int) -> str:
        """The zone of a node; zones take turns."""
        return self.config.zones[(node - 1) % len(self.config.zones)]

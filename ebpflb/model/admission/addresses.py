# SPDX-License-Identifier: Apache-2.0
"""Which external and load-balancer IPs of a Service are served.

Anyone who may create a Service may ask for any address. Those of pods, of ClusterIPs and of servers
that the cluster needs are refused; the options decide about the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from typing import NamedTuple, TypeVar

from ebpflb.model.address import Address, Protocol, SocketAddress, format_address
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import API_SERVER, Service, ServiceName, ServicePort
from ebpflb.model.source_ranges import parse_prefix

SERVE, NOT_NODES, IGNORE = "serve", "not-nodes", "ignore"
_BITS = 128
# How many addresses or ports a line names.
_NAMED = 3


class RefusalReason(StrEnum):
    """Why an address is not served; the label of a metric."""

    IGNORED = "ignored"
    NOT_LISTED = "not_listed"
    UNSPECIFIED = "unspecified"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link_local"
    MULTICAST = "multicast"
    SERVICE_CIDR = "service_cidr"
    POD_CIDR = "pod_cidr"
    NODE = "node"
    NODE_PORT = "node_port"
    NODE_SERVER = "node_server"
    API_SERVER = "api_server"


_WHY: Mapping[RefusalReason, str] = {
    RefusalReason.IGNORED: "the option {option} is ignore",
    RefusalReason.NOT_LISTED: "not in a CIDR of the option {option}",
    RefusalReason.UNSPECIFIED: "the unspecified address",
    RefusalReason.LOOPBACK: "a loopback address",
    RefusalReason.LINK_LOCAL: "a link-local address",
    RefusalReason.MULTICAST: "a multicast address",
    RefusalReason.SERVICE_CIDR: "in a ServiceCIDR, which is for ClusterIPs",
    RefusalReason.POD_CIDR: "in the pod CIDR of a node",
    RefusalReason.NODE: "an address of a node, and the option {option} is not-nodes",
    RefusalReason.NODE_PORT: "at a node's address, the NodePort of another Service",
    RefusalReason.NODE_SERVER: "at a node's address, a port of the option protected-ports",
    RefusalReason.API_SERVER: "an API server has this address and port",
}
# These depend on the port, too.
_AT_PORTS = (RefusalReason.NODE_PORT, RefusalReason.NODE_SERVER, RefusalReason.API_SERVER)


class _Ranges:
    """CIDRs. Equal ones are equal."""

    def __init__(self, cidrs: Iterable[str]) -> None:
        # The first bits of the addresses, by the number of the others.
        self._bits: defaultdict[int, set[int]] = defaultdict(set)
        for prefix in map(parse_prefix, cidrs):
            others = _BITS - prefix.length
            self._bits[others].add(int.from_bytes(prefix.address, "big") >> others)

    def __contains__(self, address: Address) -> bool:
        number = int.from_bytes(address, "big")
        return any(number >> others in first for others, first in self._bits.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ranges) and self._bits == other._bits


_SPECIAL: Mapping[RefusalReason, _Ranges] = {
    RefusalReason.UNSPECIFIED: _Ranges(["0.0.0.0/32", "::/128"]),
    RefusalReason.LOOPBACK: _Ranges(["127.0.0.0/8", "::1/128"]),
    RefusalReason.LINK_LOCAL: _Ranges(["169.254.0.0/16", "fe80::/10"]),
    RefusalReason.MULTICAST: _Ranges(["224.0.0.0/4", "ff00::/8"]),
}


class _Field(NamedTuple):
    """Where a Service has addresses of one type, and the option that decides about them."""

    name: str
    attribute: str
    option: str


_FIELDS: Mapping[FrontendType, _Field] = {
    FrontendType.EXTERNAL_IP: _Field("externalIPs", "external_ips", "external-ips"),
    FrontendType.LOAD_BALANCER: _Field(
        "loadBalancer.ingress", "load_balancer_ips", "load-balancer-ips"
    ),
}


class Refusal(NamedTuple):
    """Addresses that a Service does not get. ports: at which; empty for all."""

    kind: FrontendType
    reason: RefusalReason
    addresses: tuple[Address, ...]
    ports: tuple[int, ...]

    def __str__(self) -> str:
        field = _FIELDS[self.kind]
        at = f" at port {_named(map(str, self.ports))}" if self.ports else ""
        why = _WHY[self.reason].format(option=field.option)
        return f"{field.name}: {_named(map(format_address, self.addresses))} not served{at}: {why}"


def _named(words: Iterable[str]) -> str:
    found = list(words)
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class AddressRules(NamedTuple):
    """The options. external_ips, load_balancer_ips: SERVE, NOT_NODES, IGNORE, or else CIDRs.

    protected_ports: of the servers of a node. api_servers: those that the options name.
    """

    external_ips: tuple[str, ...] = (SERVE,)
    load_balancer_ips: tuple[str, ...] = (SERVE,)
    protected_ports: Set[int] = frozenset()
    api_servers: Set[SocketAddress] = frozenset()

    def of(self, kind: FrontendType) -> tuple[str, ...]:
        is_external = kind is FrontendType.EXTERNAL_IP
        return self.external_ips if is_external else self.load_balancer_ips


NO_RULES = AddressRules()

_Key = TypeVar("_Key")
_Refused = dict[tuple[FrontendType, RefusalReason], tuple[dict[Address, None], dict[int, None]]]


class _Taken(NamedTuple):
    """What others have. ranges: by the reason to refuse addresses there."""

    ranges: Mapping[RefusalReason, _Ranges]
    nodes: frozenset[Address]
    api_servers: Set[SocketAddress]


class Admission:
    """Services as they are served. `served()` and `refusals` are for any thread."""

    def __init__(self, rules: AddressRules) -> None:
        # Those of each Service that has some.
        self.refusals: dict[ServiceName, tuple[Refusal, ...]] = {}
        self._rules = rules
        self._listed = {
            kind: _Ranges(rules.of(kind))
            for kind in _FIELDS
            if not {SERVE, NOT_NODES, IGNORE}.intersection(rules.of(kind))
        }
        self._served: dict[ServiceName, Service] = {}
        # The Services that ask for addresses, by the ports at which they do.
        self._asking: defaultdict[int, set[ServiceName]] = defaultdict(set)
        self._node_ports: defaultdict[tuple[int, Protocol], set[ServiceName]] = defaultdict(set)
        self._affected: set[ServiceName] = set()
        self._service_ranges: tuple[str, ...] = ()
        self._nodes: dict[str, Node] = {}
        self._learned: frozenset[SocketAddress] = frozenset()
        self._taken = self._find_taken()

    def set_service_ranges(self, ranges: Iterable[str]) -> None:
        """Set the CIDRs of all ServiceCIDRs."""
        self._service_ranges = tuple(ranges)

    def set_node(self, name: str, node: Node | None) -> None:
        """Set a Node; None: it is gone."""
        self._nodes.pop(name, None)
        if node:
            self._nodes[name] = node

    def set_api_servers(self, slices: Iterable[EndpointSlice]) -> None:
        """Set the slices of the Service API_SERVER."""
        self._learned = frozenset(
            SocketAddress(address, port.port)
            for piece in slices
            for port in piece.ports
            for address in piece.endpoints.addresses
        )

    def take_affected(self) -> set[ServiceName]:
        """The Services to admit again, because of changes since the last call."""
        affected, self._affected = self._affected, set()
        before, self._taken = self._taken, self._find_taken()
        return affected if self._taken == before else set().union(*self._asking.values())

    def _find_taken(self) -> _Taken:
        nodes = self._nodes.values()
        ranges = {
            **_SPECIAL,
            RefusalReason.SERVICE_CIDR: _Ranges(self._service_ranges),
            RefusalReason.POD_CIDR: _Ranges(chain.from_iterable(n.pod_ranges for n in nodes)),
        }
        addresses = frozenset(chain.from_iterable(node.addresses for node in nodes))
        return _Taken(ranges, addresses, self._rules.api_servers | self._learned)

    def served(self, service: Service) -> Service:
        """The same Service without the addresses that it does not get."""
        return self._served.get(service.name, service)

    def count_refused(self) -> Mapping[str, int]:
        """How many addresses are not served, by reason, counted once for each Service."""
        found = {reason.value: 0 for reason in RefusalReason}
        for each in chain.from_iterable(self.refusals.values()):
            found[each.reason.value] += len(each.addresses)
        return found

    def add(self, service: Service) -> None:
        for port in service.ports:
            if port.external_ips or port.load_balancer_ips:
                self._asking[port.port].add(service.name)
            if port.node_port:
                self._node_ports[port.node_port, port.name.protocol].add(service.name)
                self._affected |= self._asking.get(port.node_port, set())
        self.admit(service)

    def remove(self, service: Service) -> None:
        for port in service.ports:
            _discard(self._asking, port.port, service.name)
            _discard(self._node_ports, (port.node_port, port.name.protocol), service.name)
            self._affected |= self._asking.get(port.node_port, set())
        self._served.pop(service.name, None)
        self.refusals.pop(service.name, None)

    def admit(self, service: Service) -> None:
        """Decide about a Service that was added; may be called again."""
        refused: _Refused = {}
        ports = tuple([self._admitted(service.name, port, refused) for port in service.ports])
        self._served.pop(service.name, None)
        self.refusals.pop(service.name, None)
        if refused:
            self._served[service.name] = replace(service, ports=ports)
            self.refusals[service.name] = tuple(_refusals(refused))

    def _admitted(self, service: ServiceName, port: ServicePort, refused: _Refused) -> ServicePort:
        """The port with the addresses that it gets; the others are added to `refused`."""
        kept: dict[FrontendType, tuple[Address, ...]] = {}
        for kind, field in _FIELDS.items():
            reasons = {
                each: self._why_not(kind, each) or self._why_not_there(service, port, each)
                for each in getattr(port, field.attribute)
            }
            kept[kind] = tuple([each for each, why in reasons.items() if not why])
            for address, why in reasons.items():
                if why:
                    addresses, ports = refused.setdefault((kind, why), ({}, {}))
                    addresses[address] = ports[port.port] = None
        return replace(
            port,
            external_ips=kept[FrontendType.EXTERNAL_IP],
            load_balancer_ips=kept[FrontendType.LOAD_BALANCER],
        )

    def _why_not(self, kind: FrontendType, address: Address) -> RefusalReason | None:
        """At any port."""
        rule, listed = self._rules.of(kind), self._listed.get(kind)
        if rule == (IGNORE,):
            return RefusalReason.IGNORED
        for reason, ranges in self._taken.ranges.items():
            if address in ranges:
                return reason
        if rule == (NOT_NODES,) and address in self._taken.nodes:
            return RefusalReason.NODE
        is_listed = listed is None or address in listed
        return None if is_listed else RefusalReason.NOT_LISTED

    def _why_not_there(
        self, service: ServiceName, port: ServicePort, address: Address
    ) -> RefusalReason | None:
        if SocketAddress(address, port.port) in self._taken.api_servers and service != API_SERVER:
            return RefusalReason.API_SERVER
        if address not in self._taken.nodes:
            return None
        if port.port in self._rules.protected_ports:
            return RefusalReason.NODE_SERVER
        owners = self._node_ports.get((port.port, port.name.protocol), set())
        return RefusalReason.NODE_PORT if owners - {service} else None


def _refusals(refused: _Refused) -> Iterator[Refusal]:
    for (kind, why), (addresses, ports) in refused.items():
        yield Refusal(kind, why, tuple(addresses), tuple(ports) if why in _AT_PORTS else ())


def _discard(of: dict[_Key, set[ServiceName]], key: _Key, name: ServiceName) -> None:
    names = of.get(key, set())
    names.discard(name)
    if not names:
        of.pop(key, None)

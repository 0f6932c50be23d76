# SPDX-License-Identifier: Apache-2.0
"""A Service, its endpoints and this node -> the frontends that the dataplane must offer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.address import WILDCARD, Address, Protocol
from ebpflb.model.endpoint import EndpointSlice, PortEndpoint, endpoints_of
from ebpflb.model.node import Node
from ebpflb.model.service import Service, ServiceName, ServicePort, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefixes, allowed_sources
from ebpflb.model.traffic_policy import EndpointSets, categorize


class FrontendType(StrEnum):
    """Which field of a Service a frontend comes from."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "ExternalIP"
    LOAD_BALANCER = "LoadBalancer"


class IfEmpty(StrEnum):
    """What happens to a new connection if there is no backend."""

    REFUSE = "refuse"
    DROP = "drop"


class FrontendKey(NamedTuple):
    """Where traffic is accepted; a NodePort has the wildcard address of its family."""

    address: Address
    port: int
    protocol: Protocol


class Backend(NamedTuple):
    """An endpoint as the dataplane needs it.

    local: on this node, by its node's name. An endpoint without a node's name is local if it has
    an address of the node (the API servers of the Service `kubernetes`).
    """

    address: Address
    port: int
    local: bool
    terminating: bool


class Choice(NamedTuple):
    """The backends for some sources, sorted; if_empty is REFUSE if there are any."""

    backends: tuple[Backend, ...]
    if_empty: IfEmpty


@dataclass(frozen=True, slots=True)
class Frontend:
    """One frontend of one Service port.

    local is for new connections from pods and processes of this node, others for everybody else.
    affinity_timeout is in seconds, 0 without session affinity. allowed_sources: the only clients
    that are accepted; empty for all. masquerade: SNAT to an address of this node for all clients.
    serving: endpoints of a UDP port that get no new flows but still serve, so that they keep the
    flows they have, sorted.
    """

    key: FrontendKey
    type: FrontendType
    service: ServicePortName
    local: Choice
    others: Choice
    internal_policy: TrafficPolicy
    external_policy: TrafficPolicy
    affinity_timeout: int
    allowed_sources: Prefixes = ()
    masquerade: bool = False
    serving: tuple[Backend, ...] = ()


def plan_service(
    service: Service, slices: Iterable[EndpointSlice], node: Node, *, masquerade_all: bool = False
) -> tuple[Frontend, ...]:
    """The frontends of a Service, in the order of its ports, each key once.

    Slices of other Services do not count; the order of slices does not matter. masquerade_all: SNAT
    for all but external traffic under external policy Local, which preserves client addresses.
    """
    own = [piece for piece in slices if ServiceName(piece.namespace, piece.service) == service.name]
    own.sort(key=attrgetter("name"))
    frontends: dict[FrontendKey, Frontend] = {}
    for port in service.ports:
        for frontend in _plan_port(port, own, node, masquerade_all):
            frontends.setdefault(frontend.key, frontend)
    return tuple(frontends.values())


def frontend_keys(service: Service) -> frozenset[FrontendKey]:
    """The keys of what plan_service() returns, whatever the endpoints are."""
    return frozenset(key for port in service.ports for _, key in _typed_keys(port))


def _typed_keys(port: ServicePort) -> Iterator[tuple[FrontendType, FrontendKey]]:
    protocol = port.name.protocol
    yield FrontendType.CLUSTER_IP, FrontendKey(port.cluster_ip, port.port, protocol)
    if port.node_port:
        wildcard = WILDCARD[port.family]
        yield FrontendType.NODE_PORT, FrontendKey(wildcard, port.node_port, protocol)
    for address in port.external_ips:
        yield FrontendType.EXTERNAL_IP, FrontendKey(address, port.port, protocol)
    for address in port.load_balancer_ips:
        yield FrontendType.LOAD_BALANCER, FrontendKey(address, port.port, protocol)


def _plan_port(
    port: ServicePort, slices: Iterable[EndpointSlice], node: Node, masquerade_all: bool
) -> Iterator[Frontend]:
    endpoints = endpoints_of(port, slices)
    sets = categorize(port, endpoints, node)
    serving = tuple(sorted(_backend(each, node) for each in _serving(port, endpoints, sets)))
    choices = {
        TrafficPolicy.CLUSTER: _choice(sets.cluster, sets.has_any, node),
        TrafficPolicy.LOCAL: _choice(sets.local, sets.has_any, node),
    }
    internal = choices[port.internal_policy]
    external = choices[port.external_policy]
    allowed = allowed_sources(port, node)
    preserves_clients = port.external_policy is TrafficPolicy.LOCAL
    for kind, key in _typed_keys(port):
        inside = kind is FrontendType.CLUSTER_IP
        yield Frontend(
            key=key,
            type=kind,
            service=port.name,
            local=internal if inside else choices[TrafficPolicy.CLUSTER],
            others=internal if inside else external,
            internal_policy=port.internal_policy,
            external_policy=port.external_policy,
            affinity_timeout=port.affinity_timeout,
            allowed_sources=allowed if key.address in port.load_balancer_ips else (),
            masquerade=masquerade_all and (inside or not preserves_clients),
            serving=serving,
        )


def _serving(
    port: ServicePort, endpoints: Iterable[PortEndpoint], sets: EndpointSets
) -> Iterator[PortEndpoint]:
    if port.name.protocol is Protocol.UDP:
        chosen = {*sets.cluster, *sets.local}
        yield from (each for each in endpoints if each.endpoint.serving and each not in chosen)


def _choice(endpoints: Iterable[PortEndpoint], has_any: bool, node: Node) -> Choice:
    backends = sorted(_backend(endpoint, node) for endpoint in endpoints)
    drop = has_any and not backends
    return Choice(tuple(backends), IfEmpty.DROP if drop else IfEmpty.REFUSE)


def _backend(endpoint: PortEndpoint, node: Node) -> Backend:
    target = endpoint.endpoint
    local = target.node_name == node.name
    if target.node_name is None:
        local = target.address in node.addresses
    return Backend(target.address, endpoint.port, local, target.terminating)

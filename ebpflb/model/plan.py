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
from ebpflb.model.topology import categorize


class FrontendType(StrEnum):
    """Which field of a Service a frontend comes from."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "ExternalIP"
    LOAD_BALANCER = "LoadBalancer"


class IfEmpty(StrEnum):
    """What a new connection meets where there is no backend."""

    REFUSE = "refuse"
    DROP = "drop"


class FrontendKey(NamedTuple):
    """What accepts traffic; a NodePort has the wildcard address of its family."""

    address: Address
    port: int
    protocol: Protocol


class Backend(NamedTuple):
    """An endpoint as the dataplane needs it; local: on this node."""

    address: Address
    port: int
    local: bool
    terminating: bool


class Choice(NamedTuple):
    """The backends for some sources, sorted; if_empty is REFUSE while there are any."""

    backends: tuple[Backend, ...]
    if_empty: IfEmpty


@dataclass(frozen=True, slots=True)
class Frontend:
    """One frontend of one Service port.

    local is for new connections from pods and processes of this node, others for everybody else.
    affinity_timeout is in seconds, 0 without session affinity.
    """

    key: FrontendKey
    type: FrontendType
    service: ServicePortName
    local: Choice
    others: Choice
    internal_policy: TrafficPolicy
    external_policy: TrafficPolicy
    affinity_timeout: int


def plan_service(
    service: Service, slices: Iterable[EndpointSlice], node: Node
) -> tuple[Frontend, ...]:
    """The frontends of a Service, in the order of its ports, each key once.

    Slices of other Services do not count; the order of slices does not matter.
    """
    own = [piece for piece in slices if ServiceName(piece.namespace, piece.service) == service.name]
    own.sort(key=attrgetter("name"))
    frontends: dict[FrontendKey, Frontend] = {}
    for port in service.ports:
        for frontend in _plan_port(port, own, node):
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
    port: ServicePort, slices: Iterable[EndpointSlice], node: Node
) -> Iterator[Frontend]:
    sets = categorize(port, endpoints_of(port, slices), node)
    choices = {
        TrafficPolicy.CLUSTER: _choice(sets.cluster, sets.has_any, node),
        TrafficPolicy.LOCAL: _choice(sets.local, sets.has_any, node),
    }
    internal = choices[port.internal_policy]
    external = choices[port.external_policy]
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
        )


def _choice(endpoints: Iterable[PortEndpoint], has_any: bool, node: Node) -> Choice:
    backends = sorted(_backend(endpoint, node) for endpoint in endpoints)
    drop = has_any and not backends
    return Choice(tuple(backends), IfEmpty.DROP if drop else IfEmpty.REFUSE)


def _backend(endpoint: PortEndpoint, node: Node) -> Backend:
    target = endpoint.endpoint
    local = target.node_name == node.name
    return Backend(target.address, endpoint.port, local, target.terminating)

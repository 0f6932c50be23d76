# SPDX-License-Identifier: Apache-2.0
"""A Service, its endpoints and this node -> the frontends that the dataplane must offer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.address import WILDCARD, Address, Protocol, SocketAddress
from ebpflb.model.ejection import NO_WATCH, EjectionState, PortWatch
from ebpflb.model.endpoint import EndpointSlice, PortEndpoint, endpoints_of
from ebpflb.model.extensions.retry import retries
from ebpflb.model.node import Node
from ebpflb.model.service import (
    Dsr,
    Service,
    ServiceName,
    ServicePort,
    ServicePortName,
    TrafficPolicy,
)
from ebpflb.model.source_ranges import Prefixes, allowed_sources
from ebpflb.model.traffic_policy import EndpointSets, categorize
from ebpflb.words.connections import Fate
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler


class FrontendType(StrEnum):
    """Which field of a Service a frontend comes from."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "ExternalIP"
    LOAD_BALANCER = "LoadBalancer"


class IfEmpty(StrEnum):
    """What happens to a new connection if there are no backends."""

    REFUSE = "refuse"
    DROP = "drop"

    @property
    def fate(self) -> Fate:
        """Of such a connection."""
        return Fate.DROPPED if self is IfEmpty.DROP else Fate.REFUSED


class FrontendKey(NamedTuple):
    """Where traffic is accepted; a NodePort has the wildcard address of its family."""

    address: Address
    port: int
    protocol: Protocol


class Backend(NamedTuple):
    """An endpoint as the dataplane needs it.

    local: its node name is this node's. An endpoint without a node name is local if it has an
    address of this node (the API servers of the Service `kubernetes`). node: the name of another
    node, None if unknown; not stored in the maps.
    """

    address: Address
    port: int
    local: bool
    terminating: bool
    ejection: EjectionState = EjectionState.UNWATCHED
    node: str | None = None


class Choice(NamedTuple):
    """The backends for some sources, sorted; if_empty is REFUSE if there are any."""

    backends: tuple[Backend, ...]
    if_empty: IfEmpty


@dataclass(frozen=True, slots=True)
class Frontend:
    """One frontend of one Service port.

    local is for new connections from pods and processes on this node, others for all other clients.
    affinity_timeout is in seconds, 0 without session affinity. allowed_sources: the only clients
    accepted; empty for all. masquerade: SNAT to an address of this node for all clients. serving:
    sorted endpoints of a UDP port that still serve their existing flows, but get no new ones.
    scheduler: how to choose a backend if affinity has none. withdrawn: another proxy gets all new
    flows; only `serving` remains. ejected: sorted endpoints that get no new connections because
    earlier ones failed.
    table_size: slots of its lookup table, 0 if it has none. dsr: direct server return from pods on
    other nodes to clients outside the cluster. here: all endpoints on this node, sorted, if it
    takes part in that; another node may choose one that this node does not choose, or not yet, and
    may have been told before that the Service has DSR. retry: a connection that a backend does not
    answer or refuses goes to another one.
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
    scheduler: Scheduler = Scheduler.RANDOM
    withdrawn: bool = False
    ejected: tuple[Backend, ...] = ()
    table_size: int = 0
    dsr: bool = False
    here: tuple[Backend, ...] = ()
    retry: bool = False

    def admits(self, client: Address) -> bool:
        """Whether the client is within the source ranges."""
        return not self.allowed_sources or any(each.covers(client) for each in self.allowed_sources)


class Defaults(NamedTuple):
    """Settings for all Services of this node.

    masquerade_all: SNAT for everything except external traffic under external policy Local, which
    preserves client addresses. scheduler: for Services that set none. table_size: slots of a lookup
    table. dsr: which Services have direct server return.
    """

    masquerade_all: bool = False
    scheduler: Scheduler = Scheduler.RANDOM
    table_size: int = TABLE_SIZE
    dsr: Dsr = Dsr.OFF


NO_DEFAULTS = Defaults()


def plan_service(
    service: Service,
    slices: Iterable[EndpointSlice],
    node: Node,
    defaults: Defaults = NO_DEFAULTS,
    watch: Callable[[ServicePort], PortWatch] = lambda _: NO_WATCH,
) -> tuple[Frontend, ...]:
    """The frontends of a Service, in the order of its ports, each key once.

    Slices of other Services are ignored; the order of slices does not matter.
    """
    own = _own(service, slices)
    frontends: dict[FrontendKey, Frontend] = {}
    # For its ports, ANNOTATED means that this node takes part, and others may have it already.
    dsr = Dsr.OFF if defaults.dsr is Dsr.OFF else Dsr.ANNOTATED
    defaults = defaults._replace(
        scheduler=service.annotated.scheduler or defaults.scheduler,
        dsr=Dsr.ALL if defaults.dsr.holds_for(service.annotated.dsr) else dsr,
    )
    for port in service.ports:
        for frontend in _plan_port(port, own, node, defaults, watch(port)):
            frontends.setdefault(frontend.key, frontend)
    return tuple(frontends.values())


def plan_withdrawn(
    service: Service, slices: Iterable[EndpointSlice], node: Node
) -> tuple[Frontend, ...]:
    """What is left of a Service that another proxy serves now: UDP flows keep their endpoints."""
    nothing, own = Choice((), IfEmpty.REFUSE), _own(service, slices)
    return tuple(
        Frontend(
            key=FrontendKey(port.cluster_ip, port.port, port.name.protocol),
            type=FrontendType.CLUSTER_IP,
            service=port.name,
            local=nothing,
            others=nothing,
            internal_policy=port.internal_policy,
            external_policy=port.external_policy,
            affinity_timeout=0,
            serving=tuple(sorted(_backend(each, node) for each in _all_serving(port, own))),
            withdrawn=True,
        )
        for port in service.ports
        if port.name.protocol is Protocol.UDP
    )


def _own(service: Service, slices: Iterable[EndpointSlice]) -> list[EndpointSlice]:
    own = [piece for piece in slices if ServiceName(piece.namespace, piece.service) == service.name]
    return sorted(own, key=attrgetter("name"))


def _all_serving(port: ServicePort, slices: Iterable[EndpointSlice]) -> Iterator[PortEndpoint]:
    for each in endpoints_of(port, slices):
        if each.endpoint.ready or each.endpoint.serving:
            yield each


def frontend_keys(service: Service) -> frozenset[FrontendKey]:
    """The keys of the frontends of plan_service(), whatever the endpoints are."""
    return frozenset(key for port in service.ports for _, key in typed_keys(port))


def typed_keys(port: ServicePort) -> Iterator[tuple[FrontendType, FrontendKey]]:
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
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    node: Node,
    defaults: Defaults,
    watch: PortWatch,
) -> Iterator[Frontend]:
    endpoints = endpoints_of(port, slices)
    sets = categorize(port, endpoints, node)
    serving = tuple(sorted(_backend(each, node) for each in _serving(port, endpoints, sets)))
    cluster, left_out = _choice(sets.cluster, sets.has_any, node, watch)
    local, left_out_here = _choice(sets.local, sets.has_any, node, watch)
    choices = {TrafficPolicy.CLUSTER: cluster, TrafficPolicy.LOCAL: local}
    ejected = tuple(sorted({*left_out, *left_out_here}))
    internal = choices[port.internal_policy]
    external = choices[port.external_policy]
    allowed = allowed_sources(port, node)
    preserves_clients = port.external_policy is TrafficPolicy.LOCAL
    has_dsr = defaults.dsr is Dsr.ALL and not (preserves_clients or defaults.masquerade_all)
    here = tuple(sorted(_here(endpoints, node))) if defaults.dsr is not Dsr.OFF else ()
    for kind, key in typed_keys(port):
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
            masquerade=defaults.masquerade_all and (inside or not preserves_clients),
            serving=serving,
            scheduler=defaults.scheduler,
            ejected=ejected,
            table_size=defaults.table_size if defaults.scheduler.has_table else 0,
            dsr=has_dsr and not inside,
            here=() if inside else here,
            retry=retries(port.annotated, port.name.protocol),
        )


def _here(endpoints: Iterable[PortEndpoint], node: Node) -> Iterator[Backend]:
    return (each for each in (_backend(each, node) for each in endpoints) if each.local)


def _serving(
    port: ServicePort, endpoints: Iterable[PortEndpoint], sets: EndpointSets
) -> Iterator[PortEndpoint]:
    if port.name.protocol is Protocol.UDP:
        chosen = {*sets.cluster, *sets.local}
        yield from (each for each in endpoints if each.endpoint.serving and each not in chosen)


def _choice(
    endpoints: Sequence[PortEndpoint], has_any: bool, node: Node, watch: PortWatch
) -> tuple[Choice, list[Backend]]:
    """The choice, and the endpoints left out of it because they are ejected."""
    usual = EjectionState(watch.is_on)
    backends = sorted(_backend(each, node, usual) for each in endpoints)
    left_out = []
    if watch.ejected or watch.on_trial:
        places = [SocketAddress(*each[:2]) for each in backends]
        ejection_states = watch.states(places)
        backends = [
            each._replace(ejection=ejection_states.get(place, usual))
            for each, place in zip(backends, places, strict=True)
        ]
        left_out = [each for each in backends if each.ejection is EjectionState.EJECTED]
        backends = [each for each in backends if each.ejection is not EjectionState.EJECTED]
    drop = has_any and not backends
    return Choice(tuple(backends), IfEmpty.DROP if drop else IfEmpty.REFUSE), left_out


def place_of(endpoint: PortEndpoint) -> SocketAddress:
    return SocketAddress(endpoint.endpoint.address, endpoint.port)


def _backend(
    endpoint: PortEndpoint, node: Node, ejection: EjectionState = EjectionState.UNWATCHED
) -> Backend:
    target = endpoint.endpoint
    local = target.node_name == node.name
    if target.node_name is None:
        local = target.address in node.addresses
    where = None if local else target.node_name
    return Backend(target.address, endpoint.port, local, target.terminating, ejection, where)

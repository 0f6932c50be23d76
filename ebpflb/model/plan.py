# SPDX-License-Identifier: Apache-2.0
"""A Service, its endpoints and this node -> the frontends that the dataplane must offer."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.address import WILDCARD, Address, Protocol, SocketAddress
from ebpflb.model.ejection import NO_WATCH, EjectionState, PortWatch
from ebpflb.model.endpoint import EndpointSlice, PortEndpoint, endpoints_of
from ebpflb.model.extensions.limits import NO_LIMITS, Limits
from ebpflb.model.extensions.retry import retries
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.extensions.weighing import ToWeigh, Weighing
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
from ebpflb.model.traffic_policy import categorize
from ebpflb.words.backup import BackupUse
from ebpflb.words.connections import Fate
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler

HEALTH_CHECK = "healthCheckNodePort"
"""Instead of a port's name, which cannot have capital letters."""


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
    PASS = "pass"  # noqa: S105  no password

    @property
    def fate(self) -> Fate:
        """Of such a connection."""
        return _FATES[self]


_FATES = {
    IfEmpty.REFUSE: Fate.REFUSED,
    IfEmpty.DROP: Fate.DROPPED,
    IfEmpty.PASS: Fate.PASSES,
}


class FrontendKey(NamedTuple):
    """Where traffic is accepted; a NodePort has the wildcard address of its family."""

    address: Address
    port: int
    protocol: Protocol


class Backend(NamedTuple):
    """An endpoint as the dataplane needs it.

    local: its node name is this node's. An endpoint without a node name is local if it has an
    address of this node (the API servers of the Service `kubernetes`). node: the name of another
    node, None if unknown; not stored in the maps. weight: how many slots it has in the table of its
    choice, 1 if all backends have the same.
    """

    address: Address
    port: int
    local: bool
    terminating: bool
    ejection: EjectionState = EjectionState.UNWATCHED
    node: str | None = None
    weight: int = 1


class Choice(NamedTuple):
    """The backends for some sources, sorted; if_empty is REFUSE if there are any, or PASS.

    PASS: another node may have some, and unknown connections pass even if there are any here.
    """

    backends: tuple[Backend, ...]
    if_empty: IfEmpty

    @property
    def weights(self) -> tuple[int, ...]:
        """Those of its backends; empty if they are all the same."""
        found = tuple(each.weight for each in self.backends)
        return found if len(set(found)) > 1 else ()

    @property
    def shares(self) -> tuple[float, ...]:
        """Which part of new connections each backend gets, from 0 to 1."""
        whole = sum(each.weight for each in self.backends)
        return tuple(each.weight / whole for each in self.backends)

    def table_slots(self, table_size: int) -> int:
        """How many slots its table has, 0 for none. `table_size`: that of a lookup table."""
        return (table_size or sum(self.weights)) if len(self.backends) > 1 else 0


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
    may have been told before that the Service has DSR. backup: what it has of the Service's backup.
    counts_open: its open connections are counted, even if the scheduler does not need that.
    unserved: what its Service asks for at other ports of the address.
    retry: a connection that a backend does not answer or refuses goes to another one. limits: the
    same for all frontends of a Service port.
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
    backup: BackupUse = BackupUse.NONE
    counts_open: bool = False
    unserved: Unserved | None = None
    retry: bool = False
    limits: Limits = NO_LIMITS

    @property
    def answers_pings(self) -> bool:
        """Whether its address answers pings because of it."""
        is_vip = self.type is not FrontendType.NODE_PORT and self.service.port != HEALTH_CHECK
        return is_vip and bool(self.others.backends)

    def admits(self, client: Address) -> bool:
        """Whether the client is within the source ranges."""
        return not self.allowed_sources or any(each.covers(client) for each in self.allowed_sources)


class Defaults(NamedTuple):
    """Settings for all Services of this node.

    masquerade_all: SNAT for everything except external traffic under external policy Local, which
    preserves client addresses. scheduler: for Services that set none. table_size: slots of a lookup
    table. dsr: which Services have direct server return. pod_labels: whether those are known.
    """

    masquerade_all: bool = False
    scheduler: Scheduler = Scheduler.RANDOM
    table_size: int = TABLE_SIZE
    dsr: Dsr = Dsr.OFF
    pod_labels: bool = True

    @property
    def lookup_slots(self) -> int:
        """Slots of a lookup table of this scheduler, 0 if it has none."""
        return self.table_size if self.scheduler.has_table else 0


NO_DEFAULTS = Defaults()


def plan_service(
    service: Service,
    slices: Iterable[EndpointSlice],
    node: Node,
    defaults: Defaults = NO_DEFAULTS,
    watch: Callable[[ServicePort], PortWatch] = lambda _: NO_WATCH,
    weighing: Weighing | None = None,
) -> tuple[Frontend, ...]:
    """The frontends of a Service, in the order of its ports, each key once.

    Slices of other Services are ignored; the order of slices does not matter. `weighing`: of this
    Service; without it, of the slices.
    """
    own = _own(service, slices)
    used = (weighing or Weighing()) if has_weights(service, own) else None
    frontends: dict[FrontendKey, Frontend] = {}
    # For its ports, ANNOTATED means that this node takes part, and others may have it already.
    dsr = Dsr.OFF if defaults.dsr is Dsr.OFF else Dsr.ANNOTATED
    defaults = defaults._replace(
        scheduler=service.annotated.scheduler or defaults.scheduler,
        dsr=Dsr.ALL if defaults.dsr.holds_for(service.annotated.dsr) else dsr,
    )
    for port in service.ports:
        choosing = _Choosing(node, watch(port), used, defaults.lookup_slots)
        for frontend in _plan_port(port, own, defaults, choosing):
            frontends.setdefault(frontend.key, frontend)
    for port in service.ports:
        for frontend in _health_checks(port, node):
            frontends.setdefault(frontend.key, frontend)
    return tuple(frontends.values())


def has_weights(service: Service, slices: Iterable[EndpointSlice]) -> bool:
    """Whether its endpoints may get different parts of new connections."""
    return bool(service.annotated.weights) or any(each.weight is not None for each in slices)


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
    yield from _endpoint_keys(port)
    for key in _health_check_keys(port):
        yield FrontendType.LOAD_BALANCER, key


def _health_check_keys(port: ServicePort) -> Iterator[FrontendKey]:
    if port.health_check_node_port:
        for address in port.load_balancer_ips:
            yield FrontendKey(address, port.health_check_node_port, Protocol.TCP)


def _endpoint_keys(port: ServicePort) -> Iterator[tuple[FrontendType, FrontendKey]]:
    protocol = port.name.protocol
    yield FrontendType.CLUSTER_IP, FrontendKey(port.cluster_ip, port.port, protocol)
    if port.node_port:
        wildcard = WILDCARD[port.family]
        yield FrontendType.NODE_PORT, FrontendKey(wildcard, port.node_port, protocol)
    for address in port.external_ips:
        yield FrontendType.EXTERNAL_IP, FrontendKey(address, port.port, protocol)
    for address in port.load_balancer_ips:
        yield FrontendType.LOAD_BALANCER, FrontendKey(address, port.port, protocol)


class _Choosing(NamedTuple):
    """What decides about the usable endpoints of a port, besides traffic policies.

    weighing: None without weights.
    """

    node: Node
    watch: PortWatch
    weighing: Weighing | None
    table_size: int

    def choose(
        self, endpoints: Sequence[PortEndpoint], has_any: bool
    ) -> tuple[Choice, list[Backend]]:
        """The choice, and the endpoints left out of it because they are ejected."""
        endpoints = with_weight(endpoints, self.weighing)
        usual = EjectionState(self.watch.is_on)
        backends = sorted(_backend(each, self.node, usual) for each in endpoints)
        left_out = []
        if self.watch.ejected or self.watch.on_trial:
            places = [SocketAddress(*each[:2]) for each in backends]
            ejection_states = self.watch.states(places)
            backends = [
                each._replace(ejection=ejection_states.get(place, usual))
                for each, place in zip(backends, places, strict=True)
            ]
            left_out = [each for each in backends if each.ejection is EjectionState.EJECTED]
            backends = [each for each in backends if each.ejection is not EjectionState.EJECTED]
        if_empty = IfEmpty.DROP if has_any and not backends else IfEmpty.REFUSE
        return Choice(tuple(self._weighed(backends, endpoints)), if_empty), left_out

    def _weighed(
        self, backends: Sequence[Backend], endpoints: Sequence[PortEndpoint]
    ) -> Sequence[Backend]:
        """With the slots of each in the table of the choice."""
        if self.weighing is None:
            return backends
        by_place = {place_of(each): to_weigh(each) for each in endpoints}
        offered = [by_place[SocketAddress(*each[:2])] for each in backends]
        slots = self.weighing.slots(offered, self.table_size)
        pairs = zip(backends, slots, strict=True)
        return [each._replace(weight=weight) for each, weight in pairs]


def _plan_port(
    port: ServicePort, slices: Iterable[EndpointSlice], defaults: Defaults, choosing: _Choosing
) -> Iterator[Frontend]:
    endpoints, node = endpoints_of(port, slices), choosing.node
    sets = categorize(port, endpoints, node)
    cluster, left_out = choosing.choose(sets.cluster, sets.has_any)
    local, left_out_here = choosing.choose(sets.local, sets.has_any)
    choices = {TrafficPolicy.CLUSTER: cluster, TrafficPolicy.LOCAL: local}
    ejected = tuple(sorted({*left_out, *left_out_here}))
    known = {each[:2] for each in (*cluster.backends, *local.backends, *ejected)}
    serving = tuple(sorted(_backend(each, node) for each in _serving(port, endpoints, known)))
    internal = choices[port.internal_policy]
    external = choices[port.external_policy]
    allowed = allowed_sources(port, node)
    preserves_clients = port.external_policy is TrafficPolicy.LOCAL
    has_dsr = defaults.dsr is Dsr.ALL and not (preserves_clients or defaults.masquerade_all)
    here = tuple(sorted(_here(endpoints, node))) if defaults.dsr is not Dsr.OFF else ()
    for kind, key in _endpoint_keys(port):
        inside = kind is FrontendType.CLUSTER_IP
        is_vip = kind in (FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER)
        yield Frontend(
            key=key,
            type=kind,
            service=port.name,
            local=internal if inside else choices[TrafficPolicy.CLUSTER],
            others=internal if inside else _passing(external, port) if is_vip else external,
            internal_policy=port.internal_policy,
            external_policy=port.external_policy,
            affinity_timeout=port.affinity_timeout,
            allowed_sources=allowed if key.address in port.load_balancer_ips else (),
            masquerade=defaults.masquerade_all and (inside or not preserves_clients),
            serving=serving,
            scheduler=defaults.scheduler,
            ejected=ejected,
            table_size=defaults.lookup_slots,
            dsr=has_dsr and not inside,
            here=() if inside else here,
            unserved=port.annotated.vip_unserved if is_vip else None,
            retry=retries(port.annotated, port.name.protocol),
            limits=port.annotated.limits,
            counts_open=port.annotated.limits.counts_open,
        )


def _passing(choice: Choice, port: ServicePort) -> Choice:
    is_asked = port.annotated.no_local_endpoint is NoLocalEndpoint.PASS
    is_local = port.external_policy is TrafficPolicy.LOCAL
    return choice._replace(if_empty=IfEmpty.PASS) if is_asked and is_local else choice


def _health_checks(port: ServicePort, node: Node) -> Iterator[Frontend]:
    """The health check node port at load-balancer IPs, for load balancers that check it there.

    Clients on this node pass: they may ask another node that has the address.
    """
    address = node.primary.get(port.family)
    if not address:
        return
    for key in _health_check_keys(port):
        agent = Backend(address, key.port, local=True, terminating=False)
        yield Frontend(
            key=key,
            type=FrontendType.LOAD_BALANCER,
            service=port.name._replace(port=HEALTH_CHECK, protocol=Protocol.TCP),
            local=Choice((), IfEmpty.PASS),
            others=Choice((agent,), IfEmpty.REFUSE),
            internal_policy=port.internal_policy,
            external_policy=port.external_policy,
            affinity_timeout=0,
        )


def _here(endpoints: Iterable[PortEndpoint], node: Node) -> Iterator[Backend]:
    return (each for each in (_backend(each, node) for each in endpoints) if each.local)


def _serving(
    port: ServicePort, endpoints: Iterable[PortEndpoint], known: Container[tuple[Address, int]]
) -> Iterator[PortEndpoint]:
    """`known`: the places of those that get new flows, or are ejected."""
    if port.name.protocol is Protocol.UDP:
        for each in endpoints:
            if each.endpoint.serving and place_of(each) not in known:
                yield each


def place_of(endpoint: PortEndpoint) -> SocketAddress:
    return SocketAddress(endpoint.endpoint.address, endpoint.port)


def to_weigh(endpoint: PortEndpoint) -> ToWeigh:
    return ToWeigh(endpoint.endpoint.pod, endpoint.weight)


def with_weight(
    endpoints: Sequence[PortEndpoint], weighing: Weighing | None
) -> Sequence[PortEndpoint]:
    """Those that get new connections, of the usable endpoints of some clients.

    It comes before ejection: what others have to leave is not for endpoints with the weight 0.
    """
    if weighing is None:
        return endpoints
    chosen = weighing.has_any(list(map(to_weigh, endpoints)))
    return [each for each, is_chosen in zip(endpoints, chosen, strict=True) if is_chosen]


def _backend(
    endpoint: PortEndpoint, node: Node, ejection: EjectionState = EjectionState.UNWATCHED
) -> Backend:
    target = endpoint.endpoint
    local = target.node_name == node.name
    if target.node_name is None:
        local = target.address in node.addresses
    where = None if local else target.node_name
    return Backend(target.address, endpoint.port, local, target.terminating, ejection, where)

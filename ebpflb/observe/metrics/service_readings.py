# SPDX-License-Identifier: Apache-2.0
"""Readings of Service ports and their backends for /metrics."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ebpflb.config.values import socket_address
from ebpflb.dataplane.layout.records import LOCAL, SERVING, TERMINATING, USABLE
from ebpflb.dataplane.view.counts import ActiveFlows, Use
from ebpflb.dataplane.view.snapshot import BackendGroups, Snapshot
from ebpflb.dataplane.view.traffic import BackendTraffic, TrafficByBackend, TrafficByType
from ebpflb.model.address import SocketAddress, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations
from ebpflb.observe.metrics.balance import PortBalance


class PortLabels(NamedTuple):
    """The labels of a Service port. port: its name, or its number if it has none."""

    namespace: str
    service: str
    port: str
    protocol: str


class Endpoints(NamedTuple):
    """How many endpoints a Service port may use here. Terminating ones are not local or remote."""

    local: int = 0
    remote: int = 0
    terminating: int = 0


_NO_ENDPOINTS = Endpoints()


@dataclass(frozen=True, slots=True)
class PortReading:
    """One Service port. traffic: by frontend type, only types with traffic.

    oldest_seconds is None without connections, imbalance with too few. unusable: endpoints that are
    not going away, None without traffic or if this node may use any. on_removed: the active ones of
    endpoints that no longer serve.
    """

    labels: PortLabels
    traffic: Mapping[FrontendType, Counts] = field(default_factory=dict)
    endpoints: Endpoints = _NO_ENDPOINTS
    active: int = 0
    cross_node: int = 0
    cross_zone: int = 0
    oldest_seconds: float | None = None
    imbalance: float | None = None
    unusable: int | None = None
    on_removed: int = 0


@dataclass(frozen=True, slots=True)
class BackendReading:
    """One backend of a Service port. backend: IP:PORT. node, zone: "" if not known."""

    labels: PortLabels
    backend: str
    node: str
    zone: str
    traffic: Counts
    active: int


class Distribution(NamedTuple):
    """A histogram. buckets: (upper bound, count up to it), ascending; the last bound is inf."""

    buckets: Sequence[tuple[float, int]]
    sum: float


@dataclass(frozen=True, slots=True)
class Reading:
    """entries: used and maximum, by map. dropped: counts by (reason, interface).

    records: flow records received, by event. lost: records that the kernel could not write, by
    reason. xdp: packets by result. flows: by (metric, path).
    """

    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    xdp: Mapping[str, int] = field(default_factory=dict)
    flows: Mapping[tuple[str, str], Distribution] = field(default_factory=dict)
    ports: Sequence[PortReading] = ()
    backends: Sequence[BackendReading] = ()


_SECOND = 1_000_000_000
_NO_TRAFFIC: Mapping[FrontendType, Counts] = {}
_NO_BALANCE = PortBalance()
_UNKNOWN = EndpointLocation()


class PortNumbers:
    """The port number of each Service port: of its ClusterIP, or else its NodePort."""

    def __init__(self) -> None:
        self._numbers: dict[ServicePortName, int] = {}

    def update(self, snapshot: Snapshot) -> None:
        """A port whose frontends are being replaced keeps its number."""
        for frontend in snapshot.frontends:
            if frontend.type is not FrontendType.NODE_PORT:
                self._numbers[frontend.service] = frontend.port
            else:
                self._numbers.setdefault(frontend.service, frontend.port)
        for name in [name for name in self._numbers if name[:3] not in snapshot.ports]:
            del self._numbers[name]

    def labels(self) -> Mapping[ServicePortName, PortLabels]:
        """The label `port` is the port's name, or its number if it has none."""
        return {
            name: PortLabels(
                name.namespace, name.service, name.port or str(number), name.protocol.name
            )
            for name, number in self._numbers.items()
        }


def read_ports(
    snapshot: Snapshot,
    traffic: TrafficByType,
    balances: Mapping[ServicePortName, PortBalance],
    labels: Mapping[ServicePortName, PortLabels],
    now: int,
) -> list[PortReading]:
    """The readings of all Service ports. `now`: CLOCK_MONOTONIC in ns."""
    readings = []
    for name, each in labels.items():
        counts = traffic.get(name, _NO_TRAFFIC)
        balance = balances.get(name, _NO_BALANCE)
        uses = snapshot.backends.uses(name) if counts else ()
        active, oldest = _in_use(uses, snapshot.active)
        age = None if oldest is None else max(now - oldest, 0) / _SECOND
        endpoints = _endpoints(snapshot.backends, name)
        crossings = balance.cross_node, balance.cross_zone
        readings.append(
            PortReading(
                each,
                counts,
                endpoints,
                active,
                *crossings,
                age,
                balance.imbalance,
                on_removed=_on_removed(snapshot, name, uses),
            )
        )
    return readings


def add_unusable(
    names: Iterable[ServicePortName], ports: Sequence[PortReading], locations: EndpointLocations
) -> list[PortReading]:
    """The readings with `unusable`. names: of each port."""
    named = list(zip(names, ports, strict=True))
    left = {name for name, port in named if port.traffic and not any(port.endpoints)}
    standing = locations.standing(left) if left else {}
    return [
        replace(port, unusable=standing.get(name, 0)) if name in left else port
        for name, port in named
    ]


def _in_use(uses: Collection[Use], active: ActiveFlows) -> tuple[int, int | None]:
    """How many flows use these backends, and when the oldest one began."""
    began = [start for use in uses if (start := active.oldest.get(use)) is not None]
    return sum(active.flows.get(use, 0) for use in uses), min(began, default=None)


def _on_removed(snapshot: Snapshot, name: ServicePortName, uses: Collection[Use]) -> int:
    """How many flows use backends that are removed as in TrafficByBackend."""
    flags, flows = snapshot.backends.flags, snapshot.active.flows
    if not any(flows.get(use, 0) and not flags[use[0]] & (USABLE | SERVING) for use in uses):
        return 0
    group = snapshot.backends[name]
    served = {(each.address, each.port) for each in group if each.is_served}
    gone = (each for each in group if (each.address, each.port) not in served)
    return sum(map(snapshot.active_of, gone))


def _endpoints(backends: BackendGroups, name: ServicePortName) -> Endpoints:
    flags = [found for each in backends.indices(name) if (found := backends.flags[each]) & USABLE]
    terminating = sum(bool(each & TERMINATING) for each in flags)
    local = sum(each & (LOCAL | TERMINATING) == LOCAL for each in flags)
    return Endpoints(local, len(flags) - local - terminating, terminating)


def read_backends(
    traffic: TrafficByBackend,
    labels: Mapping[ServicePortName, PortLabels],
    locations: EndpointLocations,
) -> list[BackendReading]:
    """The readings of all backends that take new connections or have some."""
    return [
        _backend(labels[name], place, each, locations)
        for name, backends in traffic.items()
        if name in labels
        for place, each in backends.items()
        if each.offered or each.active
    ]


def _backend(
    labels: PortLabels, place: SocketAddress, traffic: BackendTraffic, locations: EndpointLocations
) -> BackendReading:
    location = locations.get(place.address, _UNKNOWN)
    return BackendReading(
        labels,
        socket_address(format_address(place.address), place.port),
        location.node or (locations.own.node if traffic.local else ""),
        location.zone,
        traffic.counts,
        traffic.active,
    )

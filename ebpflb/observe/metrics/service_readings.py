# SPDX-License-Identifier: Apache-2.0
"""Readings of Service ports and their backends for /metrics."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
    """One Service port that has had traffic. traffic: by frontend type, only types with traffic.

    oldest_seconds is None without connections, imbalance with too few. unusable: endpoints that are
    not going away, None if this node may use any. on_removed: the active ones of endpoints that no
    longer serve. full: endpoints with as many connections as they may have, None without a limit.
    """

    labels: PortLabels
    traffic: Mapping[FrontendType, Counts]
    endpoints: Endpoints = _NO_ENDPOINTS
    active: int = 0
    cross_node: int = 0
    cross_zone: int = 0
    cross_zone_bytes: int = 0
    oldest_seconds: float | None = None
    imbalance: float | None = None
    unusable: int | None = None
    on_removed: int = 0
    full: int | None = None


@dataclass(frozen=True, slots=True)
class BackendReading:
    """One backend of a Service port. backend: IP:PORT. node, zone: "" if not known."""

    labels: PortLabels
    backend: str
    node: str
    zone: str
    traffic: Counts
    active: int


class Exemplar(NamedTuple):
    """One of the flows that a bucket counts. flow: its flow_id(). when: seconds since 1970."""

    flow: str
    seconds: float
    when: float


class LatencyReading(NamedTuple):
    """A histogram of a Service port. event: of the records that it counts.

    counts, exemplars: of each bucket alone, ascending. sum: in seconds.
    """

    event: str
    labels: PortLabels
    counts: Sequence[int]
    sum: float
    exemplars: Sequence[Exemplar | None]


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
    latency: Sequence[LatencyReading] = ()


_SECOND = 1_000_000_000
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
    locations: EndpointLocations,
    now: int,
) -> list[PortReading]:
    """The readings of the Service ports that have had traffic. `now`: CLOCK_MONOTONIC in ns."""
    used = [name for name in labels if traffic.get(name)]
    endpoints = {name: _endpoints(snapshot.backends, name) for name in used}
    left = {name for name, found in endpoints.items() if not any(found)}
    standing = locations.standing(left) if left else {}
    readings = []
    for name in used:
        balance = balances.get(name, _NO_BALANCE)
        uses = snapshot.backends.uses(name)
        active, oldest = _in_use(uses, snapshot.active)
        age = None if oldest is None else max(now - oldest, 0) / _SECOND
        crossings = balance.cross_node, balance.cross_zone, balance.cross_zone_bytes
        readings.append(
            PortReading(
                labels[name],
                traffic[name],
                endpoints[name],
                active,
                *crossings,
                age,
                balance.imbalance,
                standing.get(name, 0) if name in left else None,
                _on_removed(snapshot, name, uses),
                len(snapshot.full[name]) if name in snapshot.full else None,
            )
        )
    return readings


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

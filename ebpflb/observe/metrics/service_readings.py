# SPDX-License-Identifier: Apache-2.0
"""Readings of Service ports and their backends, from successive snapshots.

Counters only increase, although frontends, backends and whole sets of maps are replaced.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Generic, NamedTuple, TypeVar

from ebpflb.config.values import socket_address
from ebpflb.dataplane.layout.records import LOCAL, TERMINATING, USABLE
from ebpflb.dataplane.view.counts import ActiveFlows, Sums, grown, has_restarted
from ebpflb.dataplane.view.snapshot import BackendEntry, BackendGroups, Snapshot
from ebpflb.model.address import Address, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations
from ebpflb.observe.metrics.balance import BackendBalance, PortBalance


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

    oldest_seconds is None without connections, imbalance with too few.
    """

    labels: PortLabels
    traffic: Mapping[str, Counts] = field(default_factory=dict)
    endpoints: Endpoints = _NO_ENDPOINTS
    active: int = 0
    cross_node: int = 0
    cross_zone: int = 0
    oldest_seconds: float | None = None
    imbalance: float | None = None


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


_Group = TypeVar("_Group", bound=Hashable)
_SECOND = 1_000_000_000
_NO_TRAFFIC: Mapping[str, Counts] = {}
_NO_BALANCE = PortBalance()
_TypedPort = tuple[ServicePortName, FrontendType]
_UNKNOWN = EndpointLocation()
# A Service port, and the address and port of one of its endpoints.
_Endpoint = tuple[ServicePortName, Address, int]


class _Counter:
    """A counter in the kernel. last: as it was read; total: also of before it restarted at 0."""

    __slots__ = ("index", "key", "last", "round", "total")

    def __init__(self, key: Hashable, index: int, counts: Sums) -> None:
        self.key = key
        self.index = index
        self.last = self.total = counts
        self.round = 0

    def update(self, index: int, counts: Sums) -> None:
        if counts == self.last and index == self.index:
            return
        new = grown(self.last, counts) if index == self.index else counts
        self.index, self.last, self.total = index, counts, _sum(self.total, new)


class RunningSums(Generic[_Group]):
    """Sums over groups of counters that come, go and restart at 0; the sums only increase.

    A removed counter keeps its index until another one reuses it. Then only its sum is kept.
    """

    def __init__(self) -> None:
        # Nearly all groups have one counter.
        self._groups: dict[_Group, tuple[_Counter, ...]] = {}
        # The sum of each group's counters whose index has been reused.
        self._past: dict[_Group, Sums] = {}
        self._round = 0

    @property
    def length(self) -> int:
        """The highest index of all counters, plus 1."""
        indices = (each.index for group in self._groups.values() for each in group)
        return max(indices, default=-1) + 1

    def begin(self) -> None:
        """Begin a round: call `add()` for each existing counter, then `finish()`."""
        self._round += 1

    def add(self, group: _Group, key: Hashable, index: int, counts: Sums) -> None:
        """Report a counter's value. A different index or a lower value means that it restarted."""
        counters = self._groups.get(group, ())
        counter = next((each for each in counters if each.key == key), None)
        if counter:
            counter.update(index, counts)
        else:
            counter = _Counter(key, index, counts)
            self._groups[group] = (*counters, counter)
        counter.round = self._round

    def finish(self, counts: Sequence[Sums], used: Container[int]) -> None:
        """Read the final values of removed counters. used: the indices in use."""
        for group, counters in self._groups.items():
            gone = [each for each in counters if each.round != self._round]
            for each in gone:
                if each.index in used:
                    self._past[group] = _sum(self._past.get(group, ()), each.total)
                    self._groups[group] = tuple(
                        left for left in self._groups[group] if left is not each
                    )
                elif each.index < len(counts) and not has_restarted(each.last, counts[each.index]):
                    each.update(each.index, counts[each.index])

    def forget(self, is_gone: Callable[[_Group], bool]) -> None:
        gone = [group for group in self._groups if is_gone(group)]
        for group in gone:
            del self._groups[group]
            self._past.pop(group, None)

    def totals(self) -> Iterator[tuple[_Group, Sums]]:
        for group, counters in self._groups.items():
            total = self._past.get(group, ())
            for each in counters:
                total = _sum(total, each.total)
            yield group, total


def _sum(one: Sums, other: Sums) -> Sums:
    return tuple(map(add, one, other)) if one else other


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


class PortReadings:
    """Makes the readings of all Service ports."""

    def __init__(self, locations: EndpointLocations) -> None:
        self._locations = locations
        self._sums: RunningSums[_TypedPort] = RunningSums()
        self._balance = BackendBalance()

    @property
    def counters(self) -> int:
        """How many frontend counters the next snapshot must contain, from the first on."""
        return self._sums.length

    def read(
        self, snapshot: Snapshot, labels: Mapping[ServicePortName, PortLabels], now: int
    ) -> list[PortReading]:
        """`now`: CLOCK_MONOTONIC in ns."""
        traffic = self._by_type(snapshot)
        locations = self._locations
        self._balance.update(snapshot, locations.own, locations)
        return [
            self._reading(snapshot, name, each, traffic.get(name, _NO_TRAFFIC), now)
            for name, each in labels.items()
        ]

    def _reading(
        self,
        snapshot: Snapshot,
        name: ServicePortName,
        labels: PortLabels,
        traffic: Mapping[str, Counts],
        now: int,
    ) -> PortReading:
        balance = self._balance.ports.get(name, _NO_BALANCE)
        backends = snapshot.backends.get(name, ()) if traffic else ()
        active, oldest = _in_use(backends, snapshot.active)
        return PortReading(
            labels,
            traffic,
            _endpoints(snapshot.backends, name),
            active,
            balance.cross_node,
            balance.cross_zone,
            None if oldest is None else max(now - oldest, 0) / _SECOND,
            balance.imbalance,
        )

    def _by_type(self, snapshot: Snapshot) -> Mapping[ServicePortName, Mapping[str, Counts]]:
        self._sums.forget(lambda group: group[0][:3] not in snapshot.ports)
        self._sums.begin()
        counts = snapshot.frontend_counts
        for key, index, service, kind, _, _ in snapshot.frontends:
            self._sums.add((service, kind), key, index, counts[index])
        self._sums.finish(counts, {frontend.map_index for frontend in snapshot.frontends})
        by_type: dict[ServicePortName, dict[str, Counts]] = defaultdict(dict)
        for (service, kind), total in self._sums.totals():
            if any(total):
                by_type[service][str(kind)] = Counts(*total)
        return by_type


def _in_use(backends: Iterable[BackendEntry], active: ActiveFlows) -> tuple[int, int | None]:
    """How many flows use these backends, and when the oldest one began."""
    uses = [(each.map_index, each.generation) for each in backends]
    began = [start for use in uses if (start := active.oldest.get(use)) is not None]
    return sum(active.flows.get(use, 0) for use in uses), min(began, default=None)


def _endpoints(backends: BackendGroups, name: ServicePortName) -> Endpoints:
    flags = [found for each in backends.indices(name) if (found := backends.flags[each]) & USABLE]
    terminating = sum(bool(each & TERMINATING) for each in flags)
    local = sum(each & (LOCAL | TERMINATING) == LOCAL for each in flags)
    return Endpoints(local, len(flags) - local - terminating, terminating)


class BackendReadings:
    """Makes the readings of all backends.

    An endpoint that is removed and added again keeps its counters as long as connections use it.
    """

    def __init__(self, locations: EndpointLocations) -> None:
        self._locations = locations
        self._sums: RunningSums[_Endpoint] = RunningSums()

    def read(
        self, snapshot: Snapshot, labels: Mapping[ServicePortName, PortLabels]
    ) -> list[BackendReading]:
        present: set[_Endpoint] = set()
        local: set[_Endpoint] = set()
        active: Counter[_Endpoint] = Counter()
        every = [(service, each) for service, group in snapshot.backends.items() for each in group]
        self._sums.begin()
        for service, each in every:
            endpoint = (service, each.address, each.port)
            counts = snapshot.backend_counts[each.map_index]
            self._sums.add(endpoint, (each.map_index, each.generation), each.map_index, counts)
            flows = snapshot.active_of(each)
            active[endpoint] += flows
            if each.usable or flows:
                present.add(endpoint)
            if each.local:
                local.add(endpoint)
        self._sums.finish(snapshot.backend_counts, {each.map_index for _, each in every})
        self._sums.forget(lambda endpoint: endpoint not in present)
        return [
            self._reading(endpoint, labels[endpoint[0]], total, active[endpoint], endpoint in local)
            for endpoint, total in self._sums.totals()
            if endpoint[0] in labels
        ]

    def _reading(
        self, endpoint: _Endpoint, labels: PortLabels, total: Sums, active: int, local: bool
    ) -> BackendReading:
        _, address, port = endpoint
        location = self._locations.get(address, _UNKNOWN)
        node = location.node or (self._locations.own.node if local else "")
        backend = socket_address(format_address(address), port)
        return BackendReading(labels, backend, node, location.zone, Counts(*total), active)

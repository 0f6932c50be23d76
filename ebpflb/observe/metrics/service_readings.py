# SPDX-License-Identifier: Apache-2.0
"""The readings of Service ports and of their backends, from one snapshot after the other.

Counters only grow, although frontends, backends and whole sets of maps are replaced.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import add, lt
from typing import Generic, TypeVar

from ebpflb.address_text import socket_address
from ebpflb.dataplane.view.active import Active
from ebpflb.dataplane.view.sums import Sums
from ebpflb.dataplane.view.traffic_counts import BackendPlace, TrafficCounts
from ebpflb.model.address import Address, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations
from ebpflb.observe.metrics.balance import PortSpread, Spread
from ebpflb.observe.metrics.reading import BackendReading, Endpoints, PortLabels, PortReading

_Group = TypeVar("_Group", bound=Hashable)
_SECOND = 1_000_000_000
_NOTHING: Mapping[str, Counts] = {}
_NO_SPREAD = PortSpread()
_Typed = tuple[ServicePortName, FrontendType]
_UNKNOWN = EndpointLocation()
# A Service port, and the address and port of an endpoint of it.
_Endpoint = tuple[ServicePortName, Address, int]


class _Part:
    """One counter. before: what it had counted when it last began at 0."""

    __slots__ = ("before", "last", "look", "place")

    def __init__(self, place: int, counts: Sums) -> None:
        self.place = place
        self.last = counts
        self.before: Sums = ()
        self.look = 0

    def take(self, place: int, counts: Sums) -> None:
        if counts == self.last and place == self.place:
            return
        if place != self.place or any(map(lt, counts, self.last)):
            self.before = _sum(self.before, self.last)
        self.place, self.last = place, counts

    def take_rest(self, counts: Sums) -> None:
        """What it had counted in the end."""
        if not any(map(lt, counts, self.last)):
            self.last = counts

    @property
    def total(self) -> Sums:
        return _sum(self.before, self.last)


class RunningSums(Generic[_Group]):
    """Of groups of counters. A counter that is gone stays in the sum of its group.

    It takes no room any more once somebody else has its place.
    """

    def __init__(self) -> None:
        self._groups: dict[_Group, dict[Hashable, _Part]] = {}
        # Of each group what those had counted whose place somebody else has.
        self._past: dict[_Group, Sums] = {}
        self._look = 0

    @property
    def places(self) -> int:
        """How many places there are up to the last that a counter had."""
        parts = (part.place for group in self._groups.values() for part in group.values())
        return max(parts, default=-1) + 1

    def look(self) -> None:
        """A new look begins: `see()` is called for each counter that is there."""
        self._look += 1

    def see(self, group: _Group, key: Hashable, place: int, counts: Sums) -> None:
        """A counter has this value; another place, or less than before: it began anew."""
        parts = self._groups.setdefault(group, {})
        part = parts.get(key)
        if part is None:
            part = parts[key] = _Part(place, counts)
        else:
            part.take(place, counts)
        part.look = self._look

    def see_gone(self, counts: Sequence[Sums], used: Container[int]) -> None:
        """Look once more at what is gone: its place keeps its counts until somebody uses it."""
        for group, parts in self._groups.items():
            gone = [(key, part) for key, part in parts.items() if part.look != self._look]
            for key, part in gone:
                if part.place in used:
                    self._past[group] = _sum(self._past.get(group, ()), part.total)
                    del parts[key]
                elif part.place < len(counts):
                    part.take_rest(counts[part.place])

    def forget(self, is_gone: Callable[[_Group], bool]) -> None:
        """Drop groups."""
        gone = [group for group in self._groups if is_gone(group)]
        for group in gone:
            del self._groups[group]
            self._past.pop(group, None)

    def totals(self) -> Iterator[tuple[_Group, Sums]]:
        """The sum of each group."""
        for group, parts in self._groups.items():
            total = self._past.get(group, ())
            for part in parts.values():
                total = _sum(total, part.total)
            yield group, total


def _sum(one: Sums, other: Sums) -> Sums:
    return tuple(map(add, one, other)) if one else other


class PortNumbers:
    """The label `port` of each Service port: its name, or its number where it has none."""

    def __init__(self) -> None:
        self._numbers: dict[ServicePortName, int] = {}

    def take(self, found: TrafficCounts) -> None:
        """See what there is now. A port whose frontends are being replaced stays."""
        for frontend in found.frontends:
            if frontend.type is not FrontendType.NODE_PORT:
                self._numbers[frontend.service] = frontend.port
            else:
                self._numbers.setdefault(frontend.service, frontend.port)
        for name in [name for name in self._numbers if name[:3] not in found.services]:
            del self._numbers[name]

    def labels(self) -> Mapping[ServicePortName, PortLabels]:
        """Of all ports."""
        return {
            name: PortLabels(name.namespace, name.service, name.port or str(number), _word(name))
            for name, number in self._numbers.items()
        }


class PortReadings:
    """Of one node."""

    def __init__(self, locations: EndpointLocations) -> None:
        self._locations = locations
        self._sums: RunningSums[_Typed] = RunningSums()
        self._spread = Spread()

    @property
    def counters(self) -> int:
        """How many counters of frontends have to be read, from the first on."""
        return self._sums.places

    def take(
        self, found: TrafficCounts, labels: Mapping[ServicePortName, PortLabels], now: int
    ) -> list[PortReading]:
        """All Service ports. `now`: CLOCK_MONOTONIC in ns."""
        traffic = self._by_type(found)
        locations = self._locations
        self._spread.look(found, locations.own, locations.all())
        return [
            self._reading(found, name, each, traffic.get(name, _NOTHING), now)
            for name, each in labels.items()
        ]

    def _reading(
        self,
        found: TrafficCounts,
        name: ServicePortName,
        labels: PortLabels,
        traffic: Mapping[str, Counts],
        now: int,
    ) -> PortReading:
        backends = found.backends.get(name, ())
        spread = self._spread.ports.get(name, _NO_SPREAD)
        active, began = _in_use(backends, found.active) if traffic else (0, None)
        return PortReading(
            labels,
            traffic,
            _endpoints(backends),
            active,
            spread.cross_node,
            spread.cross_zone,
            None if began is None else max(now - began, 0) / _SECOND,
            spread.imbalance,
        )

    def _by_type(self, found: TrafficCounts) -> Mapping[ServicePortName, Mapping[str, Counts]]:
        self._sums.forget(lambda group: group[0][:3] not in found.services)
        self._sums.look()
        counts = found.frontend_counts
        for key, place, service, kind, _ in found.frontends:
            self._sums.see((service, kind), key, place, counts[place])
        self._sums.see_gone(counts, {frontend.place for frontend in found.frontends})
        by_type: dict[ServicePortName, dict[str, Counts]] = defaultdict(dict)
        for (service, kind), total in self._sums.totals():
            if any(total):
                by_type[service][str(kind)] = Counts(*total)
        return by_type


def _in_use(backends: Iterable[BackendPlace], active: Active) -> tuple[int, int | None]:
    """How many flows use them, and when the first of these began."""
    uses = [(each.place, each.generation) for each in backends]
    began = [found for use in uses if (found := active.oldest.get(use)) is not None]
    return sum(active.flows.get(use, 0) for use in uses), min(began, default=None)


def _endpoints(backends: Iterable[BackendPlace]) -> Endpoints:
    usable = [each for each in backends if each.usable]
    terminating = sum(each.terminating for each in usable)
    local = sum(each.local and not each.terminating for each in usable)
    return Endpoints(local, len(usable) - local - terminating, terminating)


def _word(name: ServicePortName) -> str:
    return name.protocol.name


class BackendReadings:
    """Of one node. An endpoint that went and came is one as long as somebody still uses it."""

    def __init__(self, locations: EndpointLocations) -> None:
        self._locations = locations
        self._sums: RunningSums[_Endpoint] = RunningSums()

    def take(
        self, found: TrafficCounts, labels: Mapping[ServicePortName, PortLabels]
    ) -> list[BackendReading]:
        """All backends."""
        present: set[_Endpoint] = set()
        local: set[_Endpoint] = set()
        active: Counter[_Endpoint] = Counter()
        self._sums.look()
        for service, each in _each(found):
            endpoint, use = (service, each.address, each.port), (each.place, each.generation)
            self._sums.see(endpoint, use, each.place, found.backend_counts[each.place])
            flows = found.active.flows.get(use, 0)
            active[endpoint] += flows
            if each.usable or flows:
                present.add(endpoint)
            if each.local:
                local.add(endpoint)
        self._sums.see_gone(found.backend_counts, {each.place for _, each in _each(found)})
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
        location = self._locations.all().get(address, _UNKNOWN)
        node = location.node or (self._locations.own.node if local else "")
        backend = socket_address(format_address(address), port)
        return BackendReading(labels, backend, node, location.zone, Counts(*total), active)


def _each(found: TrafficCounts) -> Iterator[tuple[ServicePortName, BackendPlace]]:
    for service, backends in found.backends.items():
        for each in backends:
            yield service, each

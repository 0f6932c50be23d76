# SPDX-License-Identifier: Apache-2.0
"""From the maps to the metrics of Service ports: one reading after the other.

Sums stay sums though frontends and whole sets of maps are replaced.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ebpflb.dataplane.view.active import Active
from ebpflb.dataplane.view.traffic_counts import BackendPlace, TrafficCounts
from ebpflb.model.counts import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.balance import PortSpread, Spread
from ebpflb.observe.metrics.reading import Endpoints, PortLabels, PortReading
from ebpflb.observe.metrics.running_sum import RunningSums

_SECOND = 1_000_000_000
_NOTHING: Mapping[str, Counts] = {}
_NO_SPREAD = PortSpread()

_Typed = tuple[ServicePortName, FrontendType]


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

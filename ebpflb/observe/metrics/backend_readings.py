# SPDX-License-Identifier: Apache-2.0
"""From the maps to the metrics of backends: those that are offered, and those still in use."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ebpflb.address_text import socket_address
from ebpflb.dataplane.view.sums import Sums
from ebpflb.dataplane.view.traffic_counts import BackendPlace, TrafficCounts
from ebpflb.model.address import Address, format_address
from ebpflb.model.counts import Counts
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations
from ebpflb.observe.metrics.reading import BackendReading, PortLabels
from ebpflb.observe.metrics.running_sum import RunningSums

_UNKNOWN = EndpointLocation()

# A Service port, and the address and port of an endpoint of it.
_Endpoint = tuple[ServicePortName, Address, int]


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

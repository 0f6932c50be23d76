# SPDX-License-Identifier: Apache-2.0
"""How the connections of a Service port spread: over backends, nodes and zones.

From what backends have counted at one look and at those before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ebpflb.dataplane.view.traffic_counts import BackendGroups, BackendPlace, TrafficCounts
from ebpflb.model.address import Address
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation

# How old what the balance compares with is: from once to twice that.
WINDOW_SECONDS = 300.0
# Below so many connections for each backend chance alone looks like imbalance.
ENOUGH_CONNECTIONS = 10

_CONNECTIONS = 0
_UNKNOWN = EndpointLocation()


@dataclass(slots=True, eq=False)
class _Seen:
    """connections: at the last look. older, newer: when the window began and at its last turn."""

    generation: int
    connections: int
    older: int
    newer: int


@dataclass(slots=True)
class PortSpread:
    """cross_node, cross_zone: connections since the first look. imbalance: None if too few."""

    cross_node: int = 0
    cross_zone: int = 0
    imbalance: float | None = None
    usable: list[_Seen] = field(default_factory=list)


class Spread:
    """All Service ports of one node. What was counted before the first look does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self.ports: dict[ServicePortName, PortSpread] = {}
        self._clock = clock
        self._groups: BackendGroups | None = None
        # By place in lb_backends.
        self._seen: dict[int, _Seen] = {}
        self._turned = clock()

    def look(
        self,
        found: TrafficCounts,
        own: EndpointLocation,
        locations: Mapping[Address, EndpointLocation],
    ) -> None:
        """Take what the backends of all ports have counted by now.

        A port whose backends are all gone is kept while the Service has it.
        """
        self._turn()
        groups, counts = found.backends, found.backend_counts
        is_changed = groups is not self._groups
        if is_changed:
            self._take(found, is_first=self._groups is None)
        self._groups = groups
        for name, port in self.ports.items():
            group = groups.get(name, ())
            for backend in group:
                seen = self._seen[backend.place]
                now = counts[backend.place][_CONNECTIONS]
                if now > seen.connections:
                    _count_crossings(port, backend, now - seen.connections, own, locations)
                    seen.connections = now
            if is_changed:
                self._restart_balance(port, group)
            port.imbalance = _imbalance(port.usable)

    def _turn(self) -> None:
        now = self._clock()
        if now - self._turned >= WINDOW_SECONDS:
            self._turned = now
            for seen in self._seen.values():
                seen.older, seen.newer = seen.newer, seen.connections

    def _take(self, found: TrafficCounts, *, is_first: bool) -> None:
        """What is new begins at 0; at the first look, at what it has."""
        before, self._seen = self._seen, {}
        kept = {name: port for name, port in self.ports.items() if name[:3] in found.services}
        self.ports = {**{name: PortSpread() for name in found.backends}, **kept}
        for group in found.backends.values():
            for backend in group:
                seen = before.get(backend.place)
                if seen is None or seen.generation != backend.generation:
                    base = found.backend_counts[backend.place][_CONNECTIONS] if is_first else 0
                    seen = _Seen(backend.generation, base, base, base)
                self._seen[backend.place] = seen

    def _restart_balance(self, port: PortSpread, group: Sequence[BackendPlace]) -> None:
        """Count from now on, if other backends than before are offered."""
        usable = [self._seen[each.place] for each in group if each.usable]
        if usable != port.usable:
            port.usable = usable
            for seen in usable:
                seen.older = seen.newer = seen.connections


def _imbalance(backends: Sequence[_Seen]) -> float | None:
    counted = [seen.connections - seen.older for seen in backends]
    total = sum(counted)
    if len(counted) < 2 or total < ENOUGH_CONNECTIONS * len(counted):  # noqa: PLR2004  one is even
        return None
    return max(counted) * len(counted) / total


def _count_crossings(
    port: PortSpread,
    backend: BackendPlace,
    connections: int,
    own: EndpointLocation,
    locations: Mapping[Address, EndpointLocation],
) -> None:
    if backend.local:
        return
    port.cross_node += connections
    zone = locations.get(backend.address, _UNKNOWN).zone
    if zone and own.zone and zone != own.zone:
        port.cross_zone += connections

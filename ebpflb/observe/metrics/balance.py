# SPDX-License-Identifier: Apache-2.0
"""How the connections of a Service port spread over backends, nodes and zones.

It compares what backends have counted in one snapshot and in earlier ones.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ebpflb.dataplane.view.rates import balance
from ebpflb.dataplane.view.snapshot import BackendEntry, BackendGroups, Snapshot
from ebpflb.model.address import Address
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation

# The balance is that of the last 5 to 10 minutes: one to two windows.
WINDOW_SECONDS = 300.0
# With fewer connections for each backend, chance alone looks like imbalance.
ENOUGH_CONNECTIONS = 10

_CONNECTIONS = 0
_UNKNOWN = EndpointLocation()


@dataclass(slots=True, eq=False)
class _BackendCount:
    """connections: at the last snapshot. older, newer: at the last two turns of the window."""

    generation: int
    connections: int
    older: int
    newer: int


@dataclass(slots=True)
class PortBalance:
    """cross_node, cross_zone: connections since the first snapshot. imbalance: None if too few."""

    cross_node: int = 0
    cross_zone: int = 0
    imbalance: float | None = None
    usable: list[_BackendCount] = field(default_factory=list)


class BackendBalance:
    """Of all Service ports. Connections counted before the first snapshot are left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self.ports: dict[ServicePortName, PortBalance] = {}
        self._clock = clock
        self._groups: BackendGroups | None = None
        # By index in lb_backends.
        self._seen: dict[int, _BackendCount] = {}
        self._turned = clock()

    def update(
        self,
        snapshot: Snapshot,
        own: EndpointLocation,
        locations: Mapping[Address, EndpointLocation],
    ) -> None:
        """Add what the backends have counted since the last snapshot.

        A port without backends is kept while its Service has it.
        """
        self._turn()
        groups, counts = snapshot.backends, snapshot.backend_counts
        is_changed = groups is not self._groups
        if is_changed:
            self._take(snapshot, is_first=self._groups is None)
        self._groups = groups
        for name, port in self.ports.items():
            group = groups.get(name, ())
            for backend in group:
                seen = self._seen[backend.map_index]
                now = counts[backend.map_index][_CONNECTIONS]
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

    def _take(self, snapshot: Snapshot, *, is_first: bool) -> None:
        """A new backend starts at 0; in the first snapshot, at what it has counted."""
        before, self._seen = self._seen, {}
        kept = {name: port for name, port in self.ports.items() if name[:3] in snapshot.ports}
        self.ports = {**{name: PortBalance() for name in snapshot.backends}, **kept}
        for group in snapshot.backends.values():
            for backend in group:
                seen = before.get(backend.map_index)
                if seen is None or seen.generation != backend.generation:
                    base = (
                        snapshot.backend_counts[backend.map_index][_CONNECTIONS] if is_first else 0
                    )
                    seen = _BackendCount(backend.generation, base, base, base)
                self._seen[backend.map_index] = seen

    def _restart_balance(self, port: PortBalance, group: Sequence[BackendEntry]) -> None:
        """Count from now on, if the usable backends have changed."""
        usable = [self._seen[each.map_index] for each in group if each.usable]
        if usable != port.usable:
            port.usable = usable
            for seen in usable:
                seen.older = seen.newer = seen.connections


def _imbalance(backends: Sequence[_BackendCount]) -> float | None:
    counted = [each.connections - each.older for each in backends]
    if len(counted) < 2 or sum(counted) < ENOUGH_CONNECTIONS * len(counted):  # noqa: PLR2004  one is even
        return None
    return balance(counted, len(counted)).ratio


def _count_crossings(
    port: PortBalance,
    backend: BackendEntry,
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

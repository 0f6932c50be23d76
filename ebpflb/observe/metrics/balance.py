# SPDX-License-Identifier: Apache-2.0
"""How the connections of a Service port spread over backends, nodes and zones.

Computed from the difference between the backends' counters in successive snapshots.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ebpflb.dataplane.layout.records import USABLE
from ebpflb.dataplane.view.snapshot import BackendEntry, BackendGroups, Snapshot
from ebpflb.model.address import Address
from ebpflb.model.flow import balance
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation

# The balance covers the last 5 to 10 minutes: one to two windows.
WINDOW_SECONDS = 300.0
# With fewer connections per backend, chance alone looks like imbalance.
ENOUGH_CONNECTIONS = 10

_CONNECTIONS = 0
_UNKNOWN = EndpointLocation()


@dataclass(slots=True, eq=False)
class _BackendCount:
    """connections: at the last snapshot. older, newer: at the last two window boundaries."""

    generation: int
    connections: int
    older: int
    newer: int


@dataclass(slots=True)
class PortBalance:
    """cross_node, cross_zone: connections since the first snapshot. imbalance: None if too few.

    seen: all backends by index in lb_backends; usable: those that take new connections.
    """

    cross_node: int = 0
    cross_zone: int = 0
    imbalance: float | None = None
    seen: dict[int, _BackendCount] = field(default_factory=dict)
    usable: list[_BackendCount] = field(default_factory=list)


class BackendBalance:
    """Balance of Service ports with connections, ignoring those before the first snapshot."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self.ports: dict[ServicePortName, PortBalance] = {}
        self._clock = clock
        self._groups: BackendGroups | None = None
        self._turned = clock()

    def update(
        self,
        snapshot: Snapshot,
        own: EndpointLocation,
        locations: Mapping[Address, EndpointLocation],
    ) -> None:
        """Add what the backends counted since the last snapshot.

        A port without backends is kept as long as its Service has the port.
        """
        self._turn()
        is_changed, is_first = snapshot.backends is not self._groups, self._groups is None
        self._groups = snapshot.backends
        if is_changed:
            kept = {name: port for name, port in self.ports.items() if name[:3] in snapshot.ports}
            self.ports = kept
            for name, port in kept.items():
                _take(port, snapshot, name)
        self._add_ports(snapshot, is_first=is_first)
        for name, port in self.ports.items():
            _count(port, snapshot, own, locations)
            if is_changed:
                _restart_balance(port, _usable(port, snapshot.backends, name))
            port.imbalance = _imbalance(port.usable)

    def _turn(self) -> None:
        now = self._clock()
        if now - self._turned >= WINDOW_SECONDS:
            self._turned = now
            for port in self.ports.values():
                for seen in port.seen.values():
                    seen.older, seen.newer = seen.newer, seen.connections

    def _add_ports(self, snapshot: Snapshot, *, is_first: bool) -> None:
        """Start tracking the ports that have counted something by now."""
        counts, groups = snapshot.backend_counts, snapshot.backends
        for name in groups:
            if name in self.ports:
                continue
            if any(counts[index][_CONNECTIONS] for index in groups.indices(name)):
                port = self.ports[name] = PortBalance()
                _take(port, snapshot, name, is_first=is_first)
                port.usable = _usable(port, groups, name)


def _take(
    port: PortBalance, snapshot: Snapshot, name: ServicePortName, *, is_first: bool = False
) -> None:
    """A new backend starts at 0; in the first snapshot, at its current count."""
    before, port.seen = port.seen, {}
    for backend in snapshot.backends.get(name, ()):
        index = backend.map_index
        seen = before.get(index)
        if seen is None or seen.generation != backend.generation:
            base = snapshot.backend_counts[index][_CONNECTIONS] if is_first else 0
            seen = _BackendCount(backend.generation, base, base, base)
        port.seen[index] = seen


def _count(
    port: PortBalance,
    snapshot: Snapshot,
    own: EndpointLocation,
    locations: Mapping[Address, EndpointLocation],
) -> None:
    for index, seen in port.seen.items():
        now = snapshot.backend_counts[index][_CONNECTIONS]
        if now > seen.connections:
            backend = snapshot.backends.entry(index)
            _count_crossings(port, backend, now - seen.connections, own, locations)
            seen.connections = now


def _restart_balance(port: PortBalance, usable: list[_BackendCount]) -> None:
    """Start counting anew if the usable backends have changed."""
    if usable != port.usable:
        port.usable = usable
        for seen in usable:
            seen.older = seen.newer = seen.connections


def _usable(port: PortBalance, groups: BackendGroups, name: ServicePortName) -> list[_BackendCount]:
    return [port.seen[each] for each in groups.indices(name) if groups.flags[each] & USABLE]


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

# SPDX-License-Identifier: Apache-2.0
"""How the connections of a Service port spread over backends, nodes and zones.

Computed from the difference between the backends' counters in successive snapshots.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ebpflb.dataplane.layout.records import LOCAL, USABLE
from ebpflb.dataplane.view.counts import Sums, Use
from ebpflb.dataplane.view.snapshot import BackendGroups, Snapshot
from ebpflb.model.address import Family, family_of
from ebpflb.model.flow import Counts, balance
from ebpflb.model.service import ServicePortName
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations

# The balance covers the last 5 to 10 minutes: one to two windows.
WINDOW_SECONDS = 300.0
# With fewer connections per backend, chance alone looks like imbalance.
ENOUGH_CONNECTIONS = 10

Counted = tuple[int, int]
"""Connections of a backend, and bytes in both directions."""

_NOTHING: Counted = (0, 0)
_CONNECTIONS = Counts._fields.index("connections")
_ORIGINAL_BYTES = Counts._fields.index("original_bytes")
_REPLY_BYTES = Counts._fields.index("reply_bytes")
_UNKNOWN = EndpointLocation()
_Families = tuple[Sequence[Use], Sequence[Use]]


@dataclass(slots=True)
class _BackendCount:
    """connections, bytes: at the last snapshot. older, newer: connections at the last two window
    boundaries.
    """

    connections: int
    bytes: int
    older: int
    newer: int


@dataclass(slots=True)
class PortBalance:
    """cross_node, cross_zone: connections since the beginning, and cross_zone_bytes, in both
    directions. imbalance: None if too few.

    seen: all backends; usable: those that take new connections, by address family.
    """

    cross_node: int = 0
    cross_zone: int = 0
    cross_zone_bytes: int = 0
    imbalance: float | None = None
    seen: dict[Use, _BackendCount] = field(default_factory=dict)
    usable: _Families = ((), ())


class BackendBalance:
    """Balance of Service ports with connections, ignoring those before begin().

    Without that, those before the first snapshot.
    """

    def __init__(
        self, locations: EndpointLocations, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self.ports: dict[ServicePortName, PortBalance] = {}
        self._locations = locations
        self._clock = clock
        self._groups: BackendGroups | None = None
        self._before: Sequence[Counted] | None = None
        self._turned = clock()

    def begin(self, counts: Iterable[Sums]) -> None:
        """What backends have counted until now, by index. No effect after the first update()."""
        if self._groups is None:
            self._before = list(map(_counted, counts))

    def update(self, snapshot: Snapshot) -> None:
        """Add what the backends counted since the last snapshot.

        A port without backends is kept as long as its Service has the port.
        """
        self._turn()
        is_changed = snapshot.backends is not self._groups
        if self._groups is None and self._before is None:
            self._before = list(map(_counted, snapshot.backend_counts))
        self._groups = snapshot.backends
        if is_changed:
            kept = {name: port for name, port in self.ports.items() if name[:3] in snapshot.ports}
            self.ports = kept
            for name, port in kept.items():
                _take(port, snapshot, name)
        self._add_ports(snapshot)
        # A backend that comes later starts at 0.
        self._before = ()
        for name, port in self.ports.items():
            self._count(port, snapshot)
            if is_changed:
                _restart(port, _usable(snapshot.backends, name))
            port.imbalance = _imbalance(port)

    def _turn(self) -> None:
        now = self._clock()
        if now - self._turned >= WINDOW_SECONDS:
            self._turned = now
            for port in self.ports.values():
                for seen in port.seen.values():
                    seen.older, seen.newer = seen.newer, seen.connections

    def _add_ports(self, snapshot: Snapshot) -> None:
        """Start tracking the ports that have counted something by now."""
        counts, groups = snapshot.backend_counts, snapshot.backends
        for name in groups:
            if name in self.ports:
                continue
            if any(counts[index][_CONNECTIONS] for index in groups.indices(name)):
                port = self.ports[name] = PortBalance(usable=_usable(groups, name))
                _take(port, snapshot, name, self._before or ())

    def _count(self, port: PortBalance, snapshot: Snapshot) -> None:
        own = self._locations.own
        for (index, _), seen in port.seen.items():
            connections, size = _counted(snapshot.backend_counts[index])
            # Less where the counters began anew.
            new, moved = max(connections - seen.connections, 0), max(size - seen.bytes, 0)
            if not new and not moved:
                continue
            seen.connections += new
            seen.bytes += moved
            if not snapshot.backends.flags[index] & LOCAL:
                port.cross_node += new
                zone = self._locations.get(snapshot.backends.address(index), _UNKNOWN).zone
                if zone and own.zone and zone != own.zone:
                    port.cross_zone += new
                    port.cross_zone_bytes += moved


def _counted(counts: Sums) -> Counted:
    if not any(counts):
        return _NOTHING
    return counts[_CONNECTIONS], counts[_ORIGINAL_BYTES] + counts[_REPLY_BYTES]


def _take(
    port: PortBalance, snapshot: Snapshot, name: ServicePortName, counted: Sequence[Counted] = ()
) -> None:
    """`counted`: by new backends, before they are followed; 0 beyond its end."""
    before, port.seen = port.seen, {}
    for use in snapshot.backends.uses(name):
        index, _ = use
        now = _counted(snapshot.backend_counts[index])
        base = map(min, counted[index], now) if index < len(counted) else _NOTHING
        connections, size = base
        port.seen[use] = before.get(use) or _BackendCount(
            connections, size, connections, connections
        )


def _usable(groups: BackendGroups, name: ServicePortName) -> _Families:
    usable = [use for use in groups.uses(name) if groups.flags[use[0]] & USABLE]
    ipv4 = {use for use in usable if family_of(groups.address(use[0])) is Family.IPV4}
    return [use for use in usable if use in ipv4], [use for use in usable if use not in ipv4]


def _restart(port: PortBalance, usable: _Families) -> None:
    """Start counting anew if the usable backends have changed."""
    if usable != port.usable:
        port.usable = usable
        for use in chain(*usable):
            seen = port.seen[use]
            seen.older = seen.newer = seen.connections


def _imbalance(port: PortBalance) -> float | None:
    """Of the address family with the most connections, as for `top`."""
    families = (map(port.seen.__getitem__, family) for family in port.usable)
    counted = max(([each.connections - each.older for each in some] for some in families), key=sum)
    if len(counted) < 2 or sum(counted) < ENOUGH_CONNECTIONS * len(counted):  # noqa: PLR2004  one is even
        return None
    return balance(counted, len(counted)).ratio

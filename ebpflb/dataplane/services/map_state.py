# SPDX-License-Identifier: Apache-2.0
"""A local copy of the maps' contents: the arrays, and which port uses which index.

Usage is derived from the descriptors that lb_current refers to, both after a restart and after a
change: a Service port uses the ranges and source ranges in its frontends' descriptors, and the
backends in those ranges. It keeps UDP backends and ejected ones as long as their endpoints serve;
they have LB_BACKEND_SERVING. On a node that takes part in DSR it has all endpoints of this node:
those in lb_pods_here.
There is one object per Service port and none per backend.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import DescFlag, FrontendTypeCode
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.dataplane.services.addresses import Addresses
from ebpflb.dataplane.services.limits import LimitRecords
from ebpflb.dataplane.services.mirror import Mirror, Words
from ebpflb.dataplane.services.slots import IndexRange, IndexRanges, Indices, NoRoomError
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.model.service import ServiceName, ServicePortName

_IDENTITIES = 1 << 32
_NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Port:
    """A Service port that has frontends, or had some and keeps flows; `identity`: its id."""

    name: ServicePortName
    identity: int
    frontends: list[int] = field(default_factory=list)
    ranges: tuple[IndexRange, ...] = ()
    # Not in any range, but flows may refer to them: their endpoints still serve.
    kept: frozenset[int] = frozenset()
    # The backends in lb_pods_here.
    here: frozenset[int] = frozenset()
    # Those of `kept` and `here` that are in no range.
    spare: frozenset[int] = frozenset()
    backends: "array[int]" = field(default_factory=lambda: array("I"))
    source_ranges: tuple[int, ...] = ()
    has_limits: bool = False


class MapState:
    """The maps of frontends. transaction.py has the order of writes."""

    def __init__(self, maps: MapSet, epoch: int = 0) -> None:
        self.maps = maps
        self.epoch = epoch
        self.current = Words(maps["lb_current"])
        self.descs = Mirror(maps["lb_descs"])
        self.slots = Mirror(maps["lb_slots"])
        self.backends = Mirror(maps["lb_backends"])
        self.addresses = Addresses(maps)
        self.source_ranges = SourceRanges(maps["lb_src_ranges"])
        self.limits = LimitRecords(maps["lb_limits"], maps["lb_client_uses"])
        size = min(self.current.size, maps["lb_frontends"].max_entries)
        self.frontend_indices = Indices(size)
        self.desc_indices = Indices(self.descs.size, first=1)
        self.slot_ranges = IndexRanges(self.slots.size)
        self.backend_indices = Indices(self.backends.size)
        self.frontends: dict[bytes, int] = {}
        self.used_before = bytearray(size)
        self.ports: dict[int, Port] = {}
        self.services: dict[ServiceName, tuple[Port, ...]] = {}
        self.names_left = maps["lb_names"].max_entries
        self._next_identity = 1

    @property
    def pools(self) -> Mapping[str, Indices | IndexRanges | SourceRanges]:
        """The allocators of each map's indices."""
        return {
            "lb_frontends": self.frontend_indices,
            "lb_descs": self.desc_indices,
            "lb_slots": self.slot_ranges,
            "lb_backends": self.backend_indices,
            "lb_addrs": self.addresses.indices,
            "lb_src_ranges": self.source_ranges,
        }

    def desc(self, frontend: int) -> DescRecord | None:
        """The descriptor of a frontend index."""
        index = self.current.word(frontend)
        return DescRecord.unpack(self.descs[index]) if index else None

    def port(self, name: ServicePortName) -> Port | None:
        """The Service port with this name, if it exists."""
        ports = self.services.get(ServiceName(*name[:2]), ())
        return next((port for port in ports if port.name == name), None)

    def is_exposed(self, port: Port) -> bool:
        """Whether any of its frontends is for clients outside the cluster."""
        descs = (self.desc(index) for index in port.frontends)
        return any(desc and desc.type != FrontendTypeCode.LB_CLUSTER_IP for desc in descs)

    def add_port(self, name: ServicePortName, identity: int) -> Port:
        """Add a Service port whose first frontend is about to be written."""
        port = self.ports[identity] = Port(name, identity)
        service = ServiceName(*name[:2])
        self.services[service] = (*self.services.get(service, ()), port)
        return port

    def remove_port(self, port: Port) -> None:
        """Remove a Service port that has no frontends left and keeps no flows."""
        service = ServiceName(*port.name[:2])
        del self.ports[port.identity]
        left = tuple(each for each in self.services.pop(service) if each is not port)
        if left:
            self.services[service] = left

    def take_identity(self) -> int:
        """A new Service id, not 0; none is reused before all have been used. NoRoomError."""
        if not self.names_left:
            raise NoRoomError
        self.names_left -= 1
        identity = self._next_identity
        while identity in self.ports:
            identity = _following(identity)
        self._next_identity = _following(identity)
        return identity

    def skip_identities(self, last: int) -> None:
        """Mark Service ids up to `last` as used."""
        self._next_identity = _following(last)

    def refresh(self, port: Port) -> None:
        """Derive what a port uses from its frontends, and from what it keeps."""
        descs = [desc for index in port.frontends if (desc := self.desc(index))]
        ranges = {place for desc in descs for place in backend_ranges(desc)}
        slots = (array("I", self.slots.span(each.base, each.length)) for each in ranges)
        named = set[int]().union(*slots)
        port.ranges = tuple(sorted(each.whole for each in ranges))
        # Share one empty set.
        port.kept = port.kept - named or _NOTHING
        port.spare = (port.kept | port.here) - named or _NOTHING
        port.backends = array("I", sorted(named | port.spare))
        port.source_ranges = tuple({desc.source_ranges for desc in descs if desc.source_ranges})
        port.has_limits = any(desc.flags & DescFlag.LB_DESC_LIMITS for desc in descs)


class BackendRange(NamedTuple):
    """struct lb_range: slots with each backend once, followed by the `table` slots."""

    base: int
    length: int
    table: int

    @property
    def whole(self) -> IndexRange:
        """The range including its lookup table."""
        return IndexRange(self.base, self.length + self.table)


def backend_ranges(desc: DescRecord) -> Iterator[BackendRange]:
    """The ranges in a descriptor that are not empty."""
    if desc.local_count:
        yield BackendRange(desc.local_base, desc.local_count, desc.local_table)
    if desc.others_count:
        yield BackendRange(desc.others_base, desc.others_count, desc.others_table)


def ranges_of(desc: DescRecord) -> Iterator[IndexRange]:
    """Like backend_ranges(), each including its lookup table."""
    return (each.whole for each in backend_ranges(desc))


def _following(identity: int) -> int:
    return identity % (_IDENTITIES - 1) + 1

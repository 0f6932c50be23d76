# SPDX-License-Identifier: Apache-2.0
"""What the maps hold, in this process: copies of the arrays, and who uses which index.

Who uses what is derived from the descriptors that lb_current names, after a restart as after a
change: a Service port uses the ranges and the source ranges that its frontends' descriptors name,
and the backends that these ranges name. A UDP port keeps others as long as their endpoints serve:
these carry LB_BACKEND_SERVING. There is one object per Service port and none per backend.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.dataplane.services.addresses import Addresses
from ebpflb.dataplane.services.mirror import Mirror, Words
from ebpflb.dataplane.services.slots import IndexRange, IndexRanges, Indices, NoRoomError
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.model.service import ServiceName, ServicePortName

_IDENTITIES = 1 << 32


@dataclass(slots=True, eq=False)
class Port:
    """A Service port that has frontends; `identity` is its Service id."""

    name: ServicePortName
    identity: int
    frontends: list[int] = field(default_factory=list)
    ranges: tuple[IndexRange, ...] = ()
    # No range names them, but UDP flows may: their endpoints serve.
    kept: frozenset[int] = frozenset()
    backends: "array[int]" = field(default_factory=lambda: array("I"))
    source_ranges: tuple[int, ...] = ()


class MapState:
    """The maps of frontends. See transaction.py for the order in which it is written."""

    def __init__(self, maps: MapSet, epoch: int = 0) -> None:
        self.maps = maps
        self.epoch = epoch
        self.current = Words(maps["lb_current"])
        self.descs = Mirror(maps["lb_descs"])
        self.slots = Mirror(maps["lb_slots"])
        self.backends = Mirror(maps["lb_backends"])
        self.addresses = Addresses(maps)
        self.source_ranges = SourceRanges(maps["lb_src_ranges"])
        size = min(self.current.size, maps["lb_frontends"].max_entries)
        self.frontend_indices = Indices(size)
        self.desc_indices = Indices(self.descs.size, first=1)
        self.slot_ranges = IndexRanges(self.slots.size)
        self.backend_indices = Indices(self.backends.size)
        self.frontends: dict[bytes, int] = {}
        self.used_before = bytearray(size)
        self.ports: dict[int, Port] = {}
        self.services: dict[ServiceName, dict[ServicePortName, Port]] = {}
        self.names_left = maps["lb_names"].max_entries
        self._next_identity = 1

    @property
    def pools(self) -> Mapping[str, Indices | IndexRanges | SourceRanges]:
        """What gives out the indices of each map."""
        return {
            "lb_frontends": self.frontend_indices,
            "lb_descs": self.desc_indices,
            "lb_slots": self.slot_ranges,
            "lb_backends": self.backend_indices,
            "lb_addrs": self.addresses.indices,
            "lb_src_ranges": self.source_ranges,
        }

    def desc(self, frontend: int) -> DescRecord | None:
        """The descriptor that a frontend index names."""
        index = self.current.word(frontend)
        return DescRecord.unpack(self.descs[index]) if index else None

    def port(self, name: ServicePortName) -> Port | None:
        """A Service port that has frontends now."""
        return self.services.get(ServiceName(*name[:2]), {}).get(name)

    def add_port(self, name: ServicePortName, identity: int) -> Port:
        """A Service port whose first frontend is about to come."""
        port = self.ports[identity] = Port(name, identity)
        self.services.setdefault(ServiceName(*name[:2]), {})[name] = port
        return port

    def remove_port(self, port: Port) -> None:
        """A Service port whose last frontend is gone."""
        service = ServiceName(*port.name[:2])
        del self.ports[port.identity]
        del self.services[service][port.name]
        if not self.services[service]:
            del self.services[service]

    def take_identity(self) -> int:
        """A new Service id, not 0; none comes twice before all have been used. NoRoomError."""
        if not self.names_left:
            raise NoRoomError
        self.names_left -= 1
        identity = self._next_identity
        while identity in self.ports:
            identity = _following(identity)
        self._next_identity = _following(identity)
        return identity

    def skip_identities(self, last: int) -> None:
        """Service ids up to `last` have been used."""
        self._next_identity = _following(last)

    def refresh(self, port: Port) -> None:
        """Derive what a port uses from what its frontends name, and from what it keeps."""
        descs = [desc for index in port.frontends if (desc := self.desc(index))]
        ranges = {place for desc in descs for place in ranges_of(desc)}
        slots = (array("I", self.slots.span(*place)) for place in ranges)
        named = set[int]().union(*slots)
        port.ranges = tuple(sorted(ranges))
        port.kept = port.kept - named if port.frontends else frozenset()
        port.backends = array("I", sorted(named | port.kept))
        port.source_ranges = tuple({desc.source_ranges for desc in descs if desc.source_ranges})


def ranges_of(desc: DescRecord) -> Iterator[IndexRange]:
    """The ranges that a descriptor names."""
    if desc.local_count:
        yield IndexRange(desc.local_base, desc.local_count)
    if desc.others_count:
        yield IndexRange(desc.others_base, desc.others_count)


def _following(identity: int) -> int:
    return identity % (_IDENTITIES - 1) + 1

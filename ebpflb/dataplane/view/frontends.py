# SPDX-License-Identifier: Apache-2.0
"""What the maps offer, frontend by frontend, as plain values. Needs the maps alone, no agent.

The maps may change while they are read. What was replaced stays readable for a grace time, so a
snapshot is normally whole; where it is not, it is taken again.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import BackendFlag, DescFlag, IfEmpty
from ebpflb.dataplane.layout.records import (
    FRONTEND_TYPES,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketAddress,
    frontend_key_of,
    unpack_name,
)
from ebpflb.dataplane.services.mirror import Mirror, Words
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.dataplane.view.active import read_active
from ebpflb.dataplane.view.counters import read_backends, read_frontends
from ebpflb.model import plan
from ebpflb.model.address import family_of, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy

_TRIES = 3
# Plain numbers: an IntFlag costs ten times as much to combine.
_LOCAL = int(BackendFlag.LB_BACKEND_LOCAL)
_TERMINATING = int(BackendFlag.LB_BACKEND_TERMINATING)
IF_EMPTY: Mapping[int, plan.IfEmpty] = {
    IfEmpty.LB_EMPTY_REFUSE: plan.IfEmpty.REFUSE,
    IfEmpty.LB_EMPTY_DROP: plan.IfEmpty.DROP,
}
_NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class BackendView:
    """A backend. `active`: connections and flows that use it now; `connections`: all so far."""

    address: str
    port: int
    local: bool
    terminating: bool
    usable: bool
    active: int
    connections: int


@dataclass(frozen=True, slots=True)
class ChoiceView:
    """Where some sources go, and what they meet (refuse, drop) where there is no backend."""

    backends: tuple[BackendView, ...]
    if_empty: str


@dataclass(frozen=True, slots=True)
class FrontendView:
    """A frontend. `local`: for pods and processes of this node, `others`: for everybody else.

    `source_ranges`: whom it is for, empty for everybody. `draining`: backends of the Service port
    that take nothing new but still have flows.
    """

    protocol: str
    address: str
    port: int
    type: str
    namespace: str
    service: str
    port_name: str
    internal_policy: str
    external_policy: str
    affinity_timeout: int
    source_ranges: tuple[str, ...]
    connections: int
    refused: int
    dropped: int
    local: ChoiceView
    others: ChoiceView
    draining: tuple[BackendView, ...]


def view_frontends(maps: MapSet, only: ServiceName | None = None) -> list[FrontendView]:
    """Every frontend, or those of one Service, by Service, type and address. MapError."""
    snapshot = _Snapshot(maps)
    for _ in range(_TRIES - 1):
        if snapshot.is_whole:
            break
        snapshot = _Snapshot(maps)
    return [
        snapshot.frontend(desc)
        for desc in sorted(snapshot.descs, key=snapshot.rank)
        if only in (None, ServiceName(*snapshot.name(desc)[:2]))
    ]


class _Snapshot:
    def __init__(self, maps: MapSet) -> None:
        keys = {k: int.from_bytes(v, byteorder) for k, v in maps["lb_frontends"].items()}
        self._names = {int.from_bytes(k, byteorder): v for k, v in maps["lb_names"].items()}
        self._unpacked: dict[tuple[int, int], ServicePortName] = {}
        current = Words(maps["lb_current"])
        self._slots, self._backends = Mirror(maps["lb_slots"]), Mirror(maps["lb_backends"])
        stored = Mirror(maps["lb_descs"])
        for mirror in (current, stored, self._slots, self._backends):
            mirror.load()
        self._source_ranges = SourceRanges(maps["lb_src_ranges"])
        self._source_ranges.load()
        found = ((key, DescRecord.unpack(stored[current.word(at)])) for key, at in keys.items())
        self.descs = [
            desc for key, desc in found if desc.frontend == key and desc.service in self._names
        ]
        self.is_whole = len(self.descs) == len(keys)
        self._counts = {each.key: each.counts for each in read_frontends(maps)}
        self._backend_counts = {
            (each.service, each.key, each.usable): each.counts for each in read_backends(maps)
        }
        self._active = read_active(maps).flows
        self._draining = self._find_draining()
        self._choices: dict[tuple[int, ...], ChoiceView] = {}

    def name(self, desc: DescRecord) -> ServicePortName:
        return self._name(desc.service, SocketAddress.unpack(desc.frontend).protocol)

    def _name(self, service: int, protocol: int) -> ServicePortName:
        known = self._unpacked.get((service, protocol))
        if known is None:
            known = unpack_name(self._names[service], protocol)
            self._unpacked[service, protocol] = known
        return known

    def rank(self, desc: DescRecord) -> tuple[object, ...]:
        return *self.name(desc), desc.type, family_of(desc.address), desc.frontend

    def frontend(self, desc: DescRecord) -> FrontendView:
        key, name = frontend_key_of(desc.frontend), self.name(desc)
        counts = self._counts.get(key, _NO_COUNTS)
        return FrontendView(
            protocol=name.protocol.name,
            address=format_address(key.address),
            port=key.port,
            type=FRONTEND_TYPES[desc.type],
            namespace=name.namespace,
            service=name.service,
            port_name=name.port,
            internal_policy=_policy(desc, DescFlag.LB_DESC_INTERNAL_LOCAL),
            external_policy=_policy(desc, DescFlag.LB_DESC_EXTERNAL_LOCAL),
            affinity_timeout=desc.affinity_timeout,
            source_ranges=tuple(map(str, self._source_ranges.prefixes(desc.source_ranges))),
            connections=counts.connections,
            refused=counts.refused,
            dropped=counts.dropped,
            local=self._choice(desc, desc.local_base, desc.local_count, desc.local_if_empty),
            others=self._choice(desc, desc.others_base, desc.others_count, desc.others_if_empty),
            draining=self._views(desc.service, self._draining.get(desc.service, ())),
        )

    def _choice(self, desc: DescRecord, base: int, count: int, if_empty: int) -> ChoiceView:
        known = (desc.service, base, count, if_empty)
        if known not in self._choices:
            indices = array("I", self._slots.span(base, count))
            self._choices[known] = ChoiceView(
                self._views(desc.service, indices), IF_EMPTY[if_empty]
            )
        return self._choices[known]

    def _views(self, service: int, indices: Iterable[int]) -> tuple[BackendView, ...]:
        records = ((BackendRecord.unpack(self._backends[index]), index) for index in indices)
        own = sorted(each for each in records if each[0].service == service)
        return tuple(self._backend(index, record) for record, index in own)

    def _backend(self, index: int, record: BackendRecord) -> BackendView:
        key = frontend_key_of(record.socket)
        usable = bool(record.flags & USABLE)
        name = self._name(record.service, key.protocol)
        counts = self._backend_counts.get((name, key, usable), _NO_COUNTS)
        return BackendView(
            address=format_address(key.address),
            port=key.port,
            local=bool(record.flags & _LOCAL),
            terminating=bool(record.flags & _TERMINATING),
            usable=usable,
            active=self._active[index, record.generation],
            connections=counts.connections,
        )

    def _find_draining(self) -> Mapping[int, list[int]]:
        draining = defaultdict(list)
        for backend, generation in sorted(self._active):
            if backend < self._backends.size:
                record = BackendRecord.unpack(self._backends[backend])
                is_same = record.generation == generation and record.service in self._names
                if is_same and not record.flags & USABLE:
                    draining[record.service].append(backend)
        return draining


def _policy(desc: DescRecord, flag: DescFlag) -> str:
    return TrafficPolicy.LOCAL if desc.flags & flag else TrafficPolicy.CLUSTER

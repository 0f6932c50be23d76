# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the maps: frontends, backends, their counters, and what uses which backend.

Used by /metrics, `ebpflb top`, `ebpflb maps dump` and `ebpflb explain`. It needs only the maps, in
one pass over each, for tens of thousands of entries: backends stay in the map's format, and are
decoded on access. A frontend that is being replaced may be missing.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from ctypes import sizeof
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout import enums
from ebpflb.dataplane.layout.records import (
    FRONTEND_TYPES,
    IF_EMPTY,
    LOCAL,
    SCHEDULERS,
    SERVING,
    TERMINATING,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketRecord,
    backup_use,
    ejection_of,
    frontend_key_of,
    unpack_limits,
    unpack_name,
    unserved_of,
)
from ebpflb.dataplane.layout.structs import LbBackend
from ebpflb.dataplane.services.map_state import BackendRange
from ebpflb.dataplane.services.mirror import Mirror, Words, column
from ebpflb.dataplane.services.open_counts import open_of
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.dataplane.services.tables import weights_in
from ebpflb.dataplane.view.counts import ActiveFlows, Sums, Use, read_active, sums
from ebpflb.model.address import Address, Protocol, family_of
from ebpflb.model.ejection import EjectionState
from ebpflb.model.extensions.limits import NO_LIMITS, Limits
from ebpflb.model.flow import Counts
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendType
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefixes

_TRIES = 3
_WIDTH = sizeof(LbBackend)
_NO_NAMES: Mapping[int, ServicePortName] = {}


class FrontendEntry(NamedTuple):
    """A frontend in force. key: as in lb_frontends. map_index: of its counters. desc: packed."""

    key: bytes
    map_index: int
    service: ServicePortName
    type: FrontendType
    port: int
    desc: bytes


class BackendEntry(NamedTuple):
    """A backend, including those that take no new connections (not usable).

    map_index: in lb_backends and for its counters. Another serial at the same index is another
    backend. service_id: of its Service port, as in lb_names. serving: an endpoint that may keep the
    connections that it has; also false for those that are `usable`.
    """

    map_index: int
    serial: int
    service_id: int
    address: Address
    port: int
    protocol: int
    local: bool
    terminating: bool
    usable: bool
    serving: bool
    ejection: EjectionState

    @property
    def is_served(self) -> bool:
        """Whether it is still an endpoint that serves."""
        return self.usable or self.serving or self.ejection is EjectionState.EJECTED


class BackendGroups(Mapping[ServicePortName, Sequence[BackendEntry]]):
    """The backends of each Service port, by index.

    `flags`: enum lb_backend_flag of each element of lb_backends.
    """

    def __init__(self, values: bytes = b"", names: Mapping[int, ServicePortName] = _NO_NAMES):
        """`values`: the first elements of lb_backends. `names`: by Service id."""
        self._values = values
        self._names = names
        self.flags = column(values, _WIDTH, LbBackend.flags.offset, "H")
        self._service_ids = _column(values, LbBackend.service.offset)
        self._serials = _column(values, LbBackend.serial.offset)
        self._indices: dict[ServicePortName, array[int]] = {}
        by_service: dict[int, array[int]] = defaultdict(lambda: array("I"))
        for index, service_id in enumerate(self._service_ids):
            if service_id:
                by_service[service_id].append(index)
        for service_id, indices in by_service.items():
            if name := names.get(service_id):
                protocol = values[indices[0] * _WIDTH + LbBackend.proto.offset]
                self._indices[_with_protocol(name, protocol)] = indices

    def __getitem__(self, name: ServicePortName) -> Sequence[BackendEntry]:
        return list(map(self.entry, self._indices[name]))

    def __iter__(self) -> Iterator[ServicePortName]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def length(self) -> int:
        """The highest index of all backends, plus 1."""
        return max((indices[-1] for indices in self._indices.values()), default=-1) + 1

    def indices(self, name: ServicePortName) -> Sequence[int]:
        """The indices in lb_backends of a Service port's backends; empty if it is not known."""
        return self._indices.get(name, ())

    def service_id(self, name: ServicePortName) -> int:
        """As in lb_names."""
        return self._service_ids[self._indices[name][0]]

    def uses(self, name: ServicePortName) -> Sequence[Use]:
        """How flows refer to a Service port's backends."""
        return [(index, self._serials[index]) for index in self.indices(name)]

    def address(self, index: int) -> Address:
        """The address of the backend at an index of lb_backends, without decoding the rest."""
        start = index * _WIDTH + LbBackend.addr.offset
        return Address(self._values[start : start + LbBackend.addr.size])

    def is_of(self, values: bytes, names: Mapping[int, ServicePortName]) -> bool:
        """Whether they were made from exactly these."""
        return self._values == values and self._names == names

    def entry(self, index: int) -> BackendEntry:
        """The entry at an index of lb_backends."""
        record = BackendRecord.unpack(self._values[index * _WIDTH : (index + 1) * _WIDTH])
        return BackendEntry(
            index,
            record.serial,
            record.service,
            *SocketRecord.unpack(record.socket),
            local=bool(record.flags & LOCAL),
            terminating=bool(record.flags & TERMINATING),
            usable=bool(record.flags & USABLE),
            serving=bool(record.flags & SERVING),
            ejection=ejection_of(record.flags),
        )


class Snapshot(NamedTuple):
    """names: by Service id, as if of TCP. ports: namespace, Service and port name of all of them.

    full: the usable backends that have as many connections as they may, of Service ports that limit
    them. The counts are by index. `backends` is the same object as in the reader's last snapshot if
    nothing has changed. `is_whole` is False if frontends were replaced during the read.
    """

    names: Mapping[int, ServicePortName]
    ports: Set[tuple[str, str, str]]
    frontends: Sequence[FrontendEntry]
    backends: BackendGroups
    frontend_counts: Sequence[Sums]
    backend_counts: Sequence[Sums]
    active: ActiveFlows
    is_whole: bool
    full: Mapping[ServicePortName, Set[int]] = {}

    def counts_of_frontend(self, frontend: FrontendEntry) -> Counts:
        return Counts(*self.frontend_counts[frontend.map_index])

    def counts_of_backend(self, backend: BackendEntry) -> Counts:
        return Counts(*self.backend_counts[backend.map_index])

    def active_of(self, backend: BackendEntry) -> int:
        """How many connections and flows use a backend."""
        return self.active.flows.get((backend.map_index, backend.serial), 0)


class SnapshotReader:
    """Takes snapshots, even of maps that are replaced in between. Not thread-safe."""

    def __init__(self) -> None:
        self._maps: MapSet | None = None
        self._names: dict[int, ServicePortName] = {}
        self._backends = BackendGroups()

    def read(self, maps: MapSet, indices: int = 0) -> Snapshot:
        """MapError. `indices`: read the counts of at least this many frontends."""
        if maps is not self._maps:
            self._maps, self._names = maps, {}
        self._read_names(maps["lb_names"])
        frontends, is_whole = self._read_frontends(maps)
        values = _used(maps["lb_backends"])
        if not self._backends.is_of(values, self._names):
            self._backends = BackendGroups(values, self._names)
        length = max((each.map_index + 1 for each in frontends), default=0)
        return Snapshot(
            self._names,
            {name[:3] for name in self._names.values()},
            frontends,
            self._backends,
            list(sums(maps["lb_count_front"], max(length, indices))),
            list(sums(maps["lb_count_back"], self._backends.length)),
            read_active(maps),
            is_whole,
            _full_backends(maps, self._backends),
        )

    def _read_names(self, table: BpfMap) -> None:
        """By Service id, whose name never changes. The protocol here is always TCP."""
        before, self._names = self._names, {}
        for key, value in table.items():
            identity = int.from_bytes(key, byteorder)
            self._names[identity] = before.get(identity) or unpack_name(value, Protocol.TCP)

    def _read_frontends(self, maps: MapSet) -> tuple[Sequence[FrontendEntry], bool]:
        current, descs = Words(maps["lb_current"]), Mirror(maps["lb_descs"])
        current.load()
        descs.load()
        words = current.column(0, "Q")
        found = list[FrontendEntry]()
        is_whole = True
        for key, value in maps["lb_frontends"].items():
            index = int.from_bytes(value, byteorder)
            word = words[index] if index < len(words) else 0
            desc = descs[word] if 0 < word < descs.size else b""
            entry = _decode_frontend(key, index, desc, self._names)
            if entry:
                found.append(entry)
            else:
                is_whole = False
        return found, is_whole


def read_snapshot(maps: MapSet, indices: int = 0) -> Snapshot:
    """One snapshot, retaken up to twice if it is not whole. MapError.

    What a frontend referred to stays readable for a grace time after it is replaced, so a snapshot
    is normally whole.
    """
    reader = SnapshotReader()
    snapshot = reader.read(maps, indices)
    for _ in range(_TRIES - 1):
        if snapshot.is_whole:
            break
        snapshot = reader.read(maps, indices)
    return snapshot


def _decode_frontend(
    key: bytes, index: int, desc: bytes, names: Mapping[int, ServicePortName]
) -> FrontendEntry | None:
    if not desc:
        return None
    record = DescRecord.unpack(desc)
    name = names.get(record.service)
    if name is None or record.frontend != key:
        return None
    _, port, protocol = SocketRecord.unpack(key)
    service = _with_protocol(name, protocol)
    return FrontendEntry(key, index, service, FRONTEND_TYPES[record.type], port, desc)


def _column(values: bytes, offset: int) -> Sequence[int]:
    return column(values, _WIDTH, offset)


def _with_protocol(name: ServicePortName, protocol: int) -> ServicePortName:
    return name if name.protocol == protocol else name._replace(protocol=Protocol(protocol))


def read_limits(maps: MapSet) -> Mapping[int, Limits]:
    """By Service id; none of maps that another version has made. MapError."""
    elements = maps["lb_limits"].items() if "lb_limits" in maps else ()
    return {int.from_bytes(key, byteorder): unpack_limits(value) for key, value in elements}


def _full_backends(maps: MapSet, backends: BackendGroups) -> Mapping[ServicePortName, Set[int]]:
    limits = {each: found.per_endpoint for each, found in read_limits(maps).items()}
    of_port = {name: limits.get(backends.service_id(name)) for name in backends if limits}
    return {
        name: frozenset(
            each
            for each in backends.indices(name)
            if backends.flags[each] & USABLE and open_of(maps, each) >= limit.most
        )
        for name, limit in of_port.items()
        if limit
    }


def _used(backends: BpfMap) -> bytes:
    """The elements from the first on, without most of those that were never used."""
    found, used = [], 0
    for chunk in backends.chunks():
        found.append(chunk.values)
        if chunk.values.count(0) < len(chunk.values):
            used = len(found)
    return b"".join(found[:used])


class BackendInUse(NamedTuple):
    """active: connections and flows that use it now. usable: it takes new connections.

    tunnel_to: its node's address, for external clients of a frontend with DSR; None: masqueraded.
    is_full: it has as many connections as the limit of its Service allows.
    """

    backend: Backend
    usable: bool
    active: int
    counts: Counts
    tunnel_to: Address | None = None
    is_full: bool = False


class FrontendInForce(NamedTuple):
    """backends: those of the Service port, also in `frontend`; without weights, which choices have.

    draining: those that take no new connections but still have flows, or are ejected.
    """

    frontend: Frontend
    counts: Counts
    backends: Mapping[Backend, BackendInUse]
    draining: tuple[BackendInUse, ...]

    def in_use(self, backend: Backend) -> BackendInUse:
        """A backend of one of its choices."""
        return self.backends[backend._replace(weight=1)]


def read_frontends(maps: MapSet, only: ServiceName | None = None) -> list[FrontendInForce]:
    """Every frontend, or those of one Service, by Service, type and address. MapError."""
    snapshot = read_snapshot(maps)
    decoder = _Decoder(maps, snapshot)
    found = [each for each in snapshot.frontends if only in (None, ServiceName(*each.service[:2]))]
    return [decoder.frontend(each) for each in sorted(found, key=_rank)]


def decode_frontend(
    desc: DescRecord,
    service: ServicePortName,
    choices: tuple[Iterable[Backend], Iterable[Backend]],
    allowed_sources: Prefixes,
    limits: Limits,
) -> Frontend:
    """The planned frontend, without `serving`, `ejected`, `here` and `counts_open`.

    choices: its local and its others.
    """
    local, others = choices
    return Frontend(
        key=frontend_key_of(desc.frontend),
        type=FRONTEND_TYPES[desc.type],
        service=service,
        local=Choice(tuple(sorted(local)), IF_EMPTY[desc.local_if_empty]),
        others=Choice(tuple(sorted(others)), IF_EMPTY[desc.others_if_empty]),
        internal_policy=policy_of(desc, enums.DescFlag.LB_DESC_INTERNAL_LOCAL),
        external_policy=policy_of(desc, enums.DescFlag.LB_DESC_EXTERNAL_LOCAL),
        affinity_timeout=desc.affinity_timeout,
        allowed_sources=allowed_sources,
        masquerade=bool(desc.flags & enums.DescFlag.LB_DESC_MASQUERADE),
        scheduler=SCHEDULERS[desc.scheduler],
        table_size=max(desc.local_table, desc.others_table) * is_hashed(desc),
        dsr=bool(desc.flags & enums.DescFlag.LB_DESC_DSR),
        backup=backup_use(desc.flags),
        unserved=unserved_of(desc),
        retry=bool(desc.flags & enums.DescFlag.LB_DESC_RETRY),
        limits=limits,
    )


def is_hashed(desc: DescRecord) -> bool:
    """Whether its tables are lookup tables of a hash."""
    return SCHEDULERS[desc.scheduler].has_table


def policy_of(desc: DescRecord, flag: enums.DescFlag) -> TrafficPolicy:
    return TrafficPolicy.LOCAL if desc.flags & flag else TrafficPolicy.CLUSTER


def _rank(entry: FrontendEntry) -> tuple[object, ...]:
    desc = DescRecord.unpack(entry.desc)
    return *entry.service, desc.type, family_of(desc.address), entry.key


class _Decoder:
    """Slots and source ranges not in a snapshot, and a cache of what several frontends share."""

    def __init__(self, maps: MapSet, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._slots = Mirror(maps["lb_slots"])
        self._slots.load()
        self._source_ranges = SourceRanges(maps["lb_src_ranges"])
        self._source_ranges.load()
        self._by_index = {
            each.map_index: each for group in snapshot.backends.values() for each in group
        }
        self._in_use: dict[ServicePortName, list[BackendInUse]] = {}
        # Maps made by another version may lack it.
        table = maps.get("lb_pod_nodes")
        self._nodes = {key: Address(value) for key, value in table.items()} if table else {}
        self._limits = read_limits(maps)

    def frontend(self, entry: FrontendEntry) -> FrontendInForce:
        desc = DescRecord.unpack(entry.desc)
        local = BackendRange(desc.local_base, desc.local_count, desc.local_table)
        others = BackendRange(desc.others_base, desc.others_count, desc.others_table)
        choices = self._backends(desc, local), self._backends(desc, others)
        sources = self._source_ranges.prefixes(desc.source_ranges)
        in_use = self._backends_of(entry.service)
        return FrontendInForce(
            decode_frontend(desc, entry.service, choices, sources, self._limits_of(desc)),
            self._snapshot.counts_of_frontend(entry),
            {each.backend: each for each in in_use},
            tuple(sorted(filter(_is_draining, in_use))),
        )

    def _limits_of(self, desc: DescRecord) -> Limits:
        has_some = desc.flags & enums.DescFlag.LB_DESC_LIMITS
        return self._limits.get(desc.service, NO_LIMITS) if has_some else NO_LIMITS

    def _backends(self, desc: DescRecord, place: BackendRange) -> Iterable[Backend]:
        indices = array("I", self._slots.span(place.base, place.length))
        table = self._slots.span(place.base + place.length, place.table)
        weights = weights_in(table, indices, is_hashed=is_hashed(desc))
        for index, weight in zip(indices, weights, strict=True):
            entry = self._by_index.get(index)
            if entry and entry.service_id == desc.service:
                yield _backend(entry)._replace(weight=weight)

    def _backends_of(self, service: ServicePortName) -> list[BackendInUse]:
        """The usable ones last, because an earlier backend may have had the same address."""
        if service not in self._in_use:
            snapshot = self._snapshot
            full = snapshot.full.get(service, ())
            group = sorted(snapshot.backends.get(service, ()), key=lambda each: each.usable)
            self._in_use[service] = [
                BackendInUse(
                    _backend(each),
                    each.usable,
                    snapshot.active_of(each),
                    snapshot.counts_of_backend(each),
                    None if each.local else self._nodes.get(each.address),
                    each.map_index in full,
                )
                for each in group
            ]
        return self._in_use[service]


def _is_draining(found: BackendInUse) -> bool:
    is_ejected = found.backend.ejection is EjectionState.EJECTED
    return not found.usable and (is_ejected or found.active > 0)


def _backend(entry: BackendEntry) -> Backend:
    where = entry.address, entry.port, entry.local, entry.terminating
    return Backend(*where, entry.ejection)

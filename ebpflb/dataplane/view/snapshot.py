# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the maps: frontends, backends, what each has counted, who uses which backend.

/metrics, `ebpflb top`, `ebpflb maps dump` and `ebpflb explain` read it. It takes the maps alone,
in one pass over each, for tens of thousands of entries: a reader decodes again only what differs
from its last snapshot. A frontend that is being replaced may be missing.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout import enums
from ebpflb.dataplane.layout.enums import BackendFlag
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
from ebpflb.dataplane.view.counts import ActiveFlows, Sums, read_active, sums
from ebpflb.model.address import Address, Protocol, family_of
from ebpflb.model.flow import Counts
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefixes

# So many backends are decoded again when one of them has changed.
_BLOCK = 256
_TRIES = 3
_LOCAL = int(BackendFlag.LB_BACKEND_LOCAL)
_TERMINATING = int(BackendFlag.LB_BACKEND_TERMINATING)


class FrontendEntry(NamedTuple):
    """A frontend in force. key: as in lb_frontends. map_index: of its counters. desc: packed."""

    key: bytes
    map_index: int
    service: ServicePortName
    type: FrontendType
    port: int
    desc: bytes


class BackendEntry(NamedTuple):
    """A backend, also one that takes no new connections (not usable).

    map_index: in lb_backends and of its counters. Another generation at the same index is another
    backend. service_id: of its Service port, as in lb_names.
    """

    map_index: int
    generation: int
    service_id: int
    address: Address
    port: int
    protocol: int
    local: bool
    terminating: bool
    usable: bool


BackendGroups = Mapping[ServicePortName, Sequence[BackendEntry]]


class Snapshot(NamedTuple):
    """`ports` are namespace, Service and port name of all Service ports.

    The counts are by index. `backends` is the same object as in the reader's last snapshot if
    nothing has changed. Not `is_whole`: frontends were replaced while they were read.
    """

    ports: Set[tuple[str, str, str]]
    frontends: Sequence[FrontendEntry]
    backends: BackendGroups
    frontend_counts: Sequence[Sums]
    backend_counts: Sequence[Sums]
    active: ActiveFlows
    is_whole: bool

    def counts_of_frontend(self, frontend: FrontendEntry) -> Counts:
        return Counts(*self.frontend_counts[frontend.map_index])

    def counts_of_backend(self, backend: BackendEntry) -> Counts:
        return Counts(*self.backend_counts[backend.map_index])

    def active_of(self, backend: BackendEntry) -> int:
        """How many connections and flows use a backend."""
        return self.active.flows.get((backend.map_index, backend.generation), 0)


class SnapshotReader:
    """Takes snapshots, of other maps too if they are replaced. Not thread-safe."""

    def __init__(self) -> None:
        self._frontends: dict[bytes, tuple[int, bytes, FrontendEntry]] = {}
        self._blocks: list[tuple[bytes, Sequence[BackendEntry]]] = []
        self._names: Mapping[int, ServicePortName] = {}
        self._groups: BackendGroups = {}

    def read(self, maps: MapSet, indices: int = 0) -> Snapshot:
        """MapError. `indices`: read the counts of at least so many frontends."""
        names = _read_names(maps["lb_names"])
        frontends, is_whole = self._read_frontends(maps, names)
        self._read_backends(maps["lb_backends"], names)
        length = max((each.map_index + 1 for each in frontends), default=0)
        used = (each.map_index + 1 for group in self._groups.values() for each in group)
        return Snapshot(
            {name[:3] for name in names.values()},
            frontends,
            self._groups,
            list(sums(maps["lb_count_front"], max(length, indices))),
            list(sums(maps["lb_count_back"], max(used, default=0))),
            read_active(maps),
            is_whole,
        )

    def _read_frontends(
        self, maps: MapSet, names: Mapping[int, ServicePortName]
    ) -> tuple[Sequence[FrontendEntry], bool]:
        current, descs = Words(maps["lb_current"]), Mirror(maps["lb_descs"])
        current.load()
        descs.load()
        words = current.column(0, "Q")
        before, self._frontends = self._frontends, {}
        is_whole = True
        for key, value in maps["lb_frontends"].items():
            index = int.from_bytes(value, byteorder)
            word = words[index] if index < len(words) else 0
            desc = descs[word] if 0 < word < descs.size else b""
            known = before.get(key)
            if known is None or known[:2] != (index, desc):
                entry = _decode_frontend(key, index, desc, names)
                known = (index, desc, entry) if entry else None
            if known:
                self._frontends[key] = known
            else:
                is_whole = False
        return [each for _, _, each in self._frontends.values()], is_whole

    def _read_backends(self, backends: BpfMap, names: Mapping[int, ServicePortName]) -> None:
        before, self._blocks = self._blocks, []
        changed = names != self._names
        self._names = names
        for first, values in _blocks(backends):
            number = len(self._blocks)
            block = before[number] if number < len(before) else None
            if block is None or block[0] != values:
                block = (values, list(_decode_backends(first, values)))
                changed = True
            self._blocks.append(block)
        if changed:
            self._groups = _grouped(self._blocks, names)


def read_snapshot(maps: MapSet) -> Snapshot:
    """One snapshot, taken again up to twice if it is not whole. MapError.

    What a frontend named stays readable for a grace time after it is replaced, so a snapshot is
    normally whole.
    """
    reader = SnapshotReader()
    snapshot = reader.read(maps)
    for _ in range(_TRIES - 1):
        if snapshot.is_whole:
            break
        snapshot = reader.read(maps)
    return snapshot


def _read_names(names: BpfMap) -> Mapping[int, ServicePortName]:
    """By service id. Frontends and backends have the protocol; here it is always TCP."""
    return {
        int.from_bytes(key, byteorder): unpack_name(value, Protocol.TCP)
        for key, value in names.items()
    }


def _decode_frontend(
    key: bytes, index: int, desc: bytes, names: Mapping[int, ServicePortName]
) -> FrontendEntry | None:
    if not desc:
        return None
    record = DescRecord.unpack(desc)
    name = names.get(record.service)
    if name is None or record.frontend != key:
        return None
    _, port, protocol = SocketAddress.unpack(key)
    service = name._replace(protocol=Protocol(protocol))
    return FrontendEntry(key, index, service, FRONTEND_TYPES[record.type], port, desc)


def _blocks(backends: BpfMap) -> Iterator[tuple[int, bytes]]:
    size = _BLOCK * backends.value_size
    first = 0
    for chunk in backends.chunks():
        for at in range(0, len(chunk.values), size):
            yield first + at // backends.value_size, chunk.values[at : at + size]
        first += chunk.size


def _decode_backends(first: int, values: bytes) -> Iterator[BackendEntry]:
    if values.count(0) == len(values):
        return
    for index, record in enumerate(BackendRecord.each(values), first):
        socket, flags, generation, service_id = record
        if service_id:
            yield BackendEntry(
                index,
                generation,
                service_id,
                *SocketAddress.unpack(socket),
                local=bool(flags & _LOCAL),
                terminating=bool(flags & _TERMINATING),
                usable=bool(flags & USABLE),
            )


def _grouped(
    blocks: Sequence[tuple[bytes, Sequence[BackendEntry]]], names: Mapping[int, ServicePortName]
) -> BackendGroups:
    groups: dict[int, list[BackendEntry]] = defaultdict(list)
    for _, backends in blocks:
        for each in backends:
            groups[each.service_id].append(each)
    return {
        names[service_id]._replace(protocol=Protocol(group[0].protocol)): group
        for service_id, group in groups.items()
        if service_id in names
    }


_IF_EMPTY: Mapping[int, IfEmpty] = {
    enums.IfEmptyCode.LB_EMPTY_REFUSE: IfEmpty.REFUSE,
    enums.IfEmptyCode.LB_EMPTY_DROP: IfEmpty.DROP,
}


class BackendInUse(NamedTuple):
    """active: connections and flows that use it now. usable: it takes new connections."""

    backend: Backend
    usable: bool
    active: int
    counts: Counts


class FrontendInForce(NamedTuple):
    """backends: those of the Service port, also of `frontend`.

    draining: those that take no new connections but still have flows.
    """

    frontend: Frontend
    counts: Counts
    backends: Mapping[Backend, BackendInUse]
    draining: tuple[BackendInUse, ...]


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
) -> Frontend:
    """The frontend that the model planned, without `serving`. choices: its local, its others."""
    local, others = choices
    return Frontend(
        key=frontend_key_of(desc.frontend),
        type=FRONTEND_TYPES[desc.type],
        service=service,
        local=Choice(tuple(sorted(local)), _IF_EMPTY[desc.local_if_empty]),
        others=Choice(tuple(sorted(others)), _IF_EMPTY[desc.others_if_empty]),
        internal_policy=policy_of(desc, enums.DescFlag.LB_DESC_INTERNAL_LOCAL),
        external_policy=policy_of(desc, enums.DescFlag.LB_DESC_EXTERNAL_LOCAL),
        affinity_timeout=desc.affinity_timeout,
        allowed_sources=allowed_sources,
        masquerade=bool(desc.flags & enums.DescFlag.LB_DESC_MASQUERADE),
    )


def policy_of(desc: DescRecord, flag: enums.DescFlag) -> TrafficPolicy:
    return TrafficPolicy.LOCAL if desc.flags & flag else TrafficPolicy.CLUSTER


def _rank(entry: FrontendEntry) -> tuple[object, ...]:
    desc = DescRecord.unpack(entry.desc)
    return *entry.service, desc.type, family_of(desc.address), entry.key


class _Decoder:
    """The slots and source ranges beside a snapshot, and what was decoded for several frontends."""

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

    def frontend(self, entry: FrontendEntry) -> FrontendInForce:
        desc = DescRecord.unpack(entry.desc)
        choices = (
            self._backends(desc.service, desc.local_base, desc.local_count),
            self._backends(desc.service, desc.others_base, desc.others_count),
        )
        sources = self._source_ranges.prefixes(desc.source_ranges)
        in_use = self._backends_of(entry.service)
        return FrontendInForce(
            decode_frontend(desc, entry.service, choices, sources),
            self._snapshot.counts_of_frontend(entry),
            {each.backend: each for each in in_use},
            tuple(sorted(each for each in in_use if each.active and not each.usable)),
        )

    def _backends(self, service_id: int, base: int, count: int) -> Iterable[Backend]:
        for index in array("I", self._slots.span(base, count)):
            entry = self._by_index.get(index)
            if entry and entry.service_id == service_id:
                yield _backend(entry)

    def _backends_of(self, service: ServicePortName) -> list[BackendInUse]:
        """The usable ones last, for an address may be that of an earlier backend, too."""
        if service not in self._in_use:
            snapshot = self._snapshot
            group = sorted(snapshot.backends.get(service, ()), key=lambda each: each.usable)
            self._in_use[service] = [
                BackendInUse(
                    _backend(each),
                    each.usable,
                    snapshot.active_of(each),
                    snapshot.counts_of_backend(each),
                )
                for each in group
            ]
        return self._in_use[service]


def _backend(entry: BackendEntry) -> Backend:
    return Backend(entry.address, entry.port, entry.local, entry.terminating)

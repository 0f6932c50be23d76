# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the maps: frontends, backends, what each has counted, who uses which backend.

/metrics, `ebpflb top`, `ebpflb maps dump` and `ebpflb explain` read it. It takes the maps alone,
in one pass over each, for tens of thousands of entries: a reader decodes again only what differs
from its last snapshot. A frontend that is being replaced may be missing.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.enums import BackendFlag
from ebpflb.dataplane.layout.records import (
    FRONTEND_TYPES,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketAddress,
    unpack_name,
)
from ebpflb.dataplane.services.mirror import Mirror, Words
from ebpflb.dataplane.view.counts import ActiveFlows, Sums, read_active, sums
from ebpflb.model.address import Address, Protocol
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName

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

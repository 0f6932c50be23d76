# SPDX-License-Identifier: Apache-2.0
"""What was counted for each frontend and each backend, and who uses which backend now.

From the maps alone, in one pass over each, for tens of thousands of both: what is as it was at the
last reading is not taken apart again. A frontend that is being replaced may be missing.
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
from ebpflb.dataplane.view.active import Active, read_active
from ebpflb.dataplane.view.sums import Sums, sums
from ebpflb.model.address import Address, Protocol
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName

# So many backends are taken apart again when one of them has changed.
_BLOCK = 256
_LOCAL = int(BackendFlag.LB_BACKEND_LOCAL)
_TERMINATING = int(BackendFlag.LB_BACKEND_TERMINATING)


class FrontendPlace(NamedTuple):
    """A frontend. place: of its counters. key: as in lb_frontends."""

    key: bytes
    place: int
    service: ServicePortName
    type: FrontendType
    port: int


class BackendPlace(NamedTuple):
    """A backend, also one that is no more offered. identity: its Service id.

    place: in lb_backends; another generation of the same place is another backend.
    """

    place: int
    generation: int
    identity: int
    address: Address
    port: int
    protocol: int
    local: bool
    terminating: bool
    usable: bool


BackendGroups = Mapping[ServicePortName, Sequence[BackendPlace]]


class TrafficCounts(NamedTuple):
    """One reading. services: namespace, Service, port name.

    The counts are by place. Without a change `backends` is the same object as before.
    """

    services: Set[tuple[str, str, str]]
    frontends: Sequence[FrontendPlace]
    backends: BackendGroups
    frontend_counts: Sequence[Sums]
    backend_counts: Sequence[Sums]
    active: Active


class TrafficReader:
    """Reads the maps of one node, again and again; they may become others. Not for threads."""

    def __init__(self) -> None:
        self._frontends: dict[bytes, tuple[int, bytes, FrontendPlace]] = {}
        self._blocks: list[tuple[bytes, Sequence[BackendPlace]]] = []
        self._names: Mapping[int, ServicePortName] = {}
        self._groups: BackendGroups = {}

    def read(self, maps: MapSet, places: int = 0) -> TrafficCounts:
        """Read all of it. MapError. Counts of frontends go up to `places` at least."""
        names = _read_names(maps["lb_names"])
        frontends = self._read_frontends(maps, names)
        self._read_backends(maps["lb_backends"], names)
        length = max((each.place + 1 for each in frontends), default=0)
        used = (each.place + 1 for group in self._groups.values() for each in group)
        return TrafficCounts(
            {name[:3] for name in names.values()},
            frontends,
            self._groups,
            list(sums(maps["lb_count_front"], max(length, places))),
            list(sums(maps["lb_count_back"], max(used, default=0))),
            read_active(maps),
        )

    def _read_frontends(
        self, maps: MapSet, names: Mapping[int, ServicePortName]
    ) -> Sequence[FrontendPlace]:
        current, descs = Words(maps["lb_current"]), Mirror(maps["lb_descs"])
        current.load()
        descs.load()
        words = current.column(0, "Q")
        before, self._frontends = self._frontends, {}
        for key, value in maps["lb_frontends"].items():
            place = int.from_bytes(value, byteorder)
            word = words[place] if place < len(words) else 0
            stored = descs[word] if 0 < word < descs.size else b""
            found = before.get(key)
            if found is None or found[:2] != (place, stored):
                taken = _frontend(key, place, stored, names)
                found = (place, stored, taken) if taken else None
            if found:
                self._frontends[key] = found
        return [each for _, _, each in self._frontends.values()]

    def _read_backends(self, backends: BpfMap, names: Mapping[int, ServicePortName]) -> None:
        before, self._blocks = self._blocks, []
        changed = names != self._names
        self._names = names
        for first, values in _blocks(backends):
            number = len(self._blocks)
            block = before[number] if number < len(before) else None
            if block is None or block[0] != values:
                block = (values, list(_parse(first, values)))
                changed = True
            self._blocks.append(block)
        if changed:
            self._groups = _grouped(self._blocks, names)


def _read_names(names: BpfMap) -> Mapping[int, ServicePortName]:
    """The protocol stands in frontends and backends; here it is always the same."""
    return {
        int.from_bytes(key, byteorder): unpack_name(value, Protocol.TCP)
        for key, value in names.items()
    }


def _frontend(
    key: bytes, place: int, stored: bytes, names: Mapping[int, ServicePortName]
) -> FrontendPlace | None:
    if not stored:
        return None
    desc = DescRecord.unpack(stored)
    name = names.get(desc.service)
    if name is None or desc.frontend != key:
        return None
    _, port, protocol = SocketAddress.unpack(key)
    service = name._replace(protocol=Protocol(protocol))
    return FrontendPlace(key, place, service, FRONTEND_TYPES[desc.type], port)


def _blocks(backends: BpfMap) -> Iterator[tuple[int, bytes]]:
    size = _BLOCK * backends.value_size
    first = 0
    for chunk in backends.chunks():
        for at in range(0, len(chunk.values), size):
            yield first + at // backends.value_size, chunk.values[at : at + size]
        first += chunk.size


def _parse(first: int, values: bytes) -> Iterator[BackendPlace]:
    if values.count(0) == len(values):
        return
    for place, record in enumerate(BackendRecord.each(values), first):
        socket, flags, generation, identity = record
        if identity:
            yield BackendPlace(
                place,
                generation,
                identity,
                *SocketAddress.unpack(socket),
                local=bool(flags & _LOCAL),
                terminating=bool(flags & _TERMINATING),
                usable=bool(flags & USABLE),
            )


def _grouped(
    blocks: Sequence[tuple[bytes, Sequence[BackendPlace]]], names: Mapping[int, ServicePortName]
) -> BackendGroups:
    groups: dict[int, list[BackendPlace]] = defaultdict(list)
    for _, backends in blocks:
        for each in backends:
            groups[each.identity].append(each)
    return {
        names[identity]._replace(protocol=Protocol(group[0].protocol)): group
        for identity, group in groups.items()
        if identity in names
    }

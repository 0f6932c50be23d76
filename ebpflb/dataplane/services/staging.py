# SPDX-License-Identifier: Apache-2.0
"""One Service turned into records, with every index it needs, before anything is written.

Either all of it fits, or nothing is taken. What is there already is used again: the index of a
frontend, that of a backend (and with it its generation, counters and affinity), and a range that
names the same backends.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import E2BIG
from typing import TypeVar

from ebpflb.dataplane.layout.records import (
    SERVING,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketAddress,
    backend_flags,
    desc_flags,
    desc_type,
    generation_of,
    if_empty,
    pack_backend,
    pack_name,
    socket_of,
)
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.dataplane.services.slots import IndexRange, NoRoomError
from ebpflb.errors import MapError
from ebpflb.model.address import Address
from ebpflb.model.plan import Backend, Choice, Frontend
from ebpflb.model.service import ServiceName, ServicePortName
from ebpflb.model.source_ranges import Prefixes

_EMPTY = IndexRange(0, 0)
_LAST_GENERATION = (1 << 32) - 1
_SOCKET_SIZE = 20

Backends = tuple[Backend, ...]
_Taken = TypeVar("_Taken")


@dataclass(slots=True)
class Staged:
    """What is to be written for a Service. Lists of (index, record) unless said otherwise."""

    service: ServiceName
    ports: dict[ServicePortName, int] = field(default_factory=dict)
    names: list[tuple[int, bytes]] = field(default_factory=list)
    backends: list[tuple[int, bytes]] = field(default_factory=list)
    new_backends: list[int] = field(default_factory=list)
    # Those of new_backends that were another endpoint's before.
    reused_backends: list[int] = field(default_factory=list)
    slots: list[tuple[IndexRange, bytes]] = field(default_factory=list)
    # Ids of sets.
    source_ranges: list[int] = field(default_factory=list)
    # (frontend index, descriptor index, record)
    descs: list[tuple[int, int, bytes]] = field(default_factory=list)
    new_frontends: list[tuple[int, bytes]] = field(default_factory=list)
    new_addresses: list[Address] = field(default_factory=list)
    # Every frontend index that the Service has from now on.
    frontends: set[int] = field(default_factory=set)
    # By Service id: the backends that no range names but that serve the flows they have.
    kept: dict[int, frozenset[int]] = field(default_factory=dict)


def stage(state: MapState, service: ServiceName, frontends: Iterable[Frontend]) -> Staged:
    """Find room for a Service. MapError names the map that is full; then nothing is taken."""
    staged = Staged(service)
    ports: dict[ServicePortName, list[Frontend]] = {}
    for frontend in frontends:
        ports.setdefault(frontend.service, []).append(frontend)
    try:
        for name, group in ports.items():
            _PortStaging(state, staged, name).stage(group)
    except MapError:
        _give_back(state, staged)
        raise
    return staged


def _give_back(state: MapState, staged: Staged) -> None:
    state.names_left += len(staged.names)
    for index in staged.new_backends:
        state.backend_indices.give(index)
    for place, _ in staged.slots:
        state.slot_ranges.give(place)
    for identity in staged.source_ranges:
        state.source_ranges.give(identity)
    for _, desc, _ in staged.descs:
        state.desc_indices.give(desc)
    for index, key in staged.new_frontends:
        state.frontend_indices.give(index)
        del state.frontends[key]
    for address in staged.new_addresses:
        state.addresses.release(address)


class _PortStaging:
    """One Service port of a Service that is being staged."""

    def __init__(self, state: MapState, staged: Staged, name: ServicePortName) -> None:
        self._state = state
        self._staged = staged
        self._name = name
        self._port = state.port(name)
        self._identity = self._port.identity if self._port else self._new_identity()
        self._source_ranges: dict[Prefixes, int] = {(): 0}
        staged.ports[name] = self._identity

    def stage(self, frontends: Sequence[Frontend]) -> None:
        choices = {choice.backends for each in frontends for choice in (each.local, each.others)}
        indices = self._stage_backends({backend for choice in choices for backend in choice})
        ranges = self._stage_ranges(choices, indices)
        # Frontends of both families are of one port.
        serving = {backend for each in frontends for backend in each.serving}
        self._staged.kept[self._identity] = self._stage_kept(serving, indices)
        self._stage_source_ranges({frontend.allowed_sources for frontend in frontends})
        for frontend in frontends:
            self._stage_frontend(frontend, ranges)

    def _new_identity(self) -> int:
        record = pack_name(self._name)
        identity = _take("lb_names", self._state.take_identity)
        self._staged.names.append((identity, record))
        return identity

    def _stage_backends(self, backends: Iterable[Backend]) -> Mapping[Backend, int]:
        sockets = {backend: self._socket(backend) for backend in backends}
        flags = dict.fromkeys(sockets.values(), USABLE)
        for backend, socket in sockets.items():
            flags[socket] |= backend_flags(backend)
        known = self._known_backends()
        for socket in sorted(flags):
            known[socket] = self._stage_backend(known.get(socket), socket, flags[socket])
        return {backend: known[socket] for backend, socket in sockets.items()}

    def _stage_kept(
        self, serving: Collection[Backend], named: Mapping[Backend, int]
    ) -> frozenset[int]:
        """Of those that get no new flows, the ones that may have some."""
        known = self._known_backends() if serving else {}
        found = {known.get(self._socket(backend)): backend for backend in serving}
        kept = {index: each for index, each in found.items() if index is not None}
        for index in named.values():
            kept.pop(index, None)
        for index, backend in kept.items():
            # Until nothing names it any more it is as usable as before.
            usable = BackendRecord.unpack(self._state.backends[index]).flags & USABLE
            self._stage_flags(index, usable | SERVING | backend_flags(backend))
        return frozenset(kept)

    def _socket(self, backend: Backend) -> bytes:
        return SocketAddress(backend.address, backend.port, self._name.protocol).pack()

    def _stage_flags(self, index: int, flags: int) -> None:
        old = BackendRecord.unpack(self._state.backends[index])
        if old.flags != flags:
            self._staged.backends.append((index, old._replace(flags=flags).pack()))

    def _known_backends(self) -> dict[bytes, int]:
        if not self._port:
            return {}
        records = self._state.backends
        return {records[index][:_SOCKET_SIZE]: index for index in self._port.backends}

    def _stage_backend(self, index: int | None, socket: bytes, flags: int) -> int:
        state, staged = self._state, self._staged
        if index is None:
            index = _take("lb_backends", state.backend_indices.take)
            staged.new_backends.append(index)
            generation = generation_of(state.backends[index])
            if generation:
                staged.reused_backends.append(index)
            generation = _following(generation or state.epoch)
            record = pack_backend(socket, flags, generation, self._identity)
            staged.backends.append((index, record))
            return index
        self._stage_flags(index, flags)
        return index

    def _stage_ranges(
        self, choices: Iterable[Backends], indices: Mapping[Backend, int]
    ) -> Mapping[Backends, IndexRange]:
        """Ranges of slots in the order of backend indices: programs search them."""
        known = {b"": _EMPTY}
        if self._port:
            known |= {self._state.slots.span(*place): place for place in self._port.ranges}
        ranges: dict[Backends, IndexRange] = {}
        for choice in choices:
            content = array("I", sorted(map(indices.__getitem__, choice))).tobytes()
            if content not in known:
                known[content] = _take("lb_slots", self._state.slot_ranges.take, len(choice))
                self._staged.slots.append((known[content], content))
            ranges[choice] = known[content]
        return ranges

    def _stage_source_ranges(self, wanted: Iterable[Prefixes]) -> None:
        sets, known = self._state.source_ranges, self._source_ranges
        if self._port:
            known |= {sets.prefixes(identity): identity for identity in self._port.source_ranges}
        for prefixes in wanted:
            if prefixes not in known:
                known[prefixes] = _take("lb_src_ranges", sets.take, prefixes)
                self._staged.source_ranges.append(known[prefixes])

    def _stage_frontend(self, frontend: Frontend, ranges: Mapping[Backends, IndexRange]) -> None:
        state, staged = self._state, self._staged
        key = socket_of(frontend).pack()
        desc = self._desc(key, frontend, ranges)
        address = frontend.key.address
        if _take("lb_addrs", state.addresses.reserve, address, desc.type):
            staged.new_addresses.append(address)
        index = state.frontends.get(key)
        if index is None:
            index = self._new_frontend(key)
        staged.frontends.add(index)
        if state.desc(index) != desc:
            place = _take("lb_descs", state.desc_indices.take)
            staged.descs.append((index, place, desc.pack()))

    def _new_frontend(self, key: bytes) -> int:
        index = _take("lb_frontends", self._state.frontend_indices.take)
        self._state.frontends[key] = index
        self._staged.new_frontends.append((index, key))
        return index

    def _desc(
        self, key: bytes, frontend: Frontend, ranges: Mapping[Backends, IndexRange]
    ) -> DescRecord:
        return DescRecord(
            key,
            self._identity,
            *_spread(frontend.local, ranges),
            *_spread(frontend.others, ranges),
            desc_type(frontend),
            desc_flags(frontend),
            frontend.affinity_timeout,
            self._source_ranges[frontend.allowed_sources],
        )


def _spread(choice: Choice, ranges: Mapping[Backends, IndexRange]) -> tuple[int, int, int]:
    return (*ranges[choice.backends], if_empty(choice))


def _following(generation: int) -> int:
    return generation % _LAST_GENERATION + 1


def _take(map_name: str, take: Callable[..., _Taken], *args: object) -> _Taken:
    try:
        return take(*args)
    except NoRoomError as error:
        raise MapError(map_name, "update", E2BIG) from error

# SPDX-License-Identifier: Apache-2.0
"""Turns one Service into records, with every index it needs, before anything is written.

Either all of it fits, or nothing is allocated; but a lookup table is left out if no larger map
would be made for it. Existing items are reused: the index of a frontend, that of a backend (and
with it its serial, counters and affinity), and a range with the same backends.
"""

import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import E2BIG
from typing import NamedTuple, TypeVar

from ebpflb.dataplane.layout.capacity import MOST_SLOTS
from ebpflb.dataplane.layout.enums import DescFlag
from ebpflb.dataplane.layout.records import (
    SCHEDULERS,
    SERVING,
    TRIAL,
    USABLE,
    WATCHED,
    BackendFields,
    BackendRecord,
    DescRecord,
    backend_flags,
    desc_flags,
    desc_type,
    if_empty,
    mean_latency,
    pack_backend,
    pack_index,
    pack_limits,
    pack_name,
    pack_open,
    pack_pod_key,
    pack_socket,
    scheduler_code,
    serial_of,
    socket_of,
    state_of,
    unpack_open,
)
from ebpflb.dataplane.services.map_state import BackendRange, MapState, backend_ranges
from ebpflb.dataplane.services.slots import IndexRange, NoRoomError
from ebpflb.dataplane.services.tables import compared_weights, table_of, weights_in
from ebpflb.errors import MapError
from ebpflb.log import fields
from ebpflb.model.address import Address
from ebpflb.model.ejection import TRIAL_COUNT
from ebpflb.model.plan import Backend, Choice, Frontend
from ebpflb.model.service import ServiceName, ServicePortName
from ebpflb.model.source_ranges import Prefixes

_log = logging.getLogger("ebpflb.dataplane")

_LAST_SERIAL = (1 << 32) - 1
_SOCKET_SIZE = 20

_Taken = TypeVar("_Taken")


class _Offered(NamedTuple):
    """What a range should have: its backends, and how many slots in its table.

    lookup_slots: the same if that is the lookup table of a hash, otherwise 0.
    """

    backends: tuple[Backend, ...]
    table: int
    lookup_slots: int


def _offered(choice: Choice, frontend: Frontend) -> _Offered:
    table = choice.table_slots(frontend.table_size)
    return _Offered(choice.backends, table, table if frontend.table_size else 0)


class _Contents(NamedTuple):
    """What the slots of a range follow from: backends, size of the lookup table, and weights.

    slots: those of its backends.
    """

    slots: bytes
    lookup_slots: int
    weights: tuple[int | None, ...]


@dataclass(slots=True)
class Staged:
    """What to write for a Service. Lists of (index, record) unless noted otherwise."""

    service: ServiceName
    ports: dict[ServicePortName, int] = field(default_factory=dict)
    names: list[tuple[int, bytes]] = field(default_factory=list)
    backends: list[tuple[int, bytes]] = field(default_factory=list)
    new_backends: list[int] = field(default_factory=list)
    # Those of new_backends whose index belonged to another endpoint before.
    reused_backends: list[int] = field(default_factory=list)
    # (index, initial count of failures in a row)
    failures: list[tuple[int, int]] = field(default_factory=list)
    # Initial counts of open connections of new backends.
    open_counts: list[tuple[int, bytes]] = field(default_factory=list)
    # The same for latencies.
    latencies: list[tuple[int, bytes]] = field(default_factory=list)
    slots: list[tuple[IndexRange, bytes]] = field(default_factory=list)
    # Ids of sets of source ranges.
    source_ranges: list[int] = field(default_factory=list)
    # By Service id: elements of lb_limits that are new or change.
    limits: dict[int, bytes] = field(default_factory=dict)
    # (frontend index, descriptor index, record)
    descs: list[tuple[int, int, bytes]] = field(default_factory=list)
    new_frontends: list[tuple[int, bytes]] = field(default_factory=list)
    new_addresses: list[Address] = field(default_factory=list)
    # Every frontend index that the Service will have.
    frontends: set[int] = field(default_factory=set)
    # By Service id: backends in no range that still serve their flows.
    kept: dict[int, frozenset[int]] = field(default_factory=dict)
    # By Service id: backends on this node that other nodes may send to.
    here: dict[int, frozenset[int]] = field(default_factory=dict)
    # (index, key in lb_pods_here) of those that are not in the map yet
    new_here: list[tuple[int, bytes]] = field(default_factory=list)


def stage(state: MapState, service: ServiceName, frontends: Iterable[Frontend]) -> Staged:
    """Allocate everything for a Service. MapError names the full map; then nothing is allocated."""
    staged = Staged(service)
    ports: dict[ServicePortName, list[Frontend]] = {}
    for frontend in frontends:
        ports.setdefault(frontend.service, []).append(frontend)
    try:
        for name, group in ports.items():
            served = [frontend for frontend in group if not frontend.withdrawn]
            if served or state.port(name):
                _PortStaging(state, staged, name).stage(group, served)
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
    for identity in staged.limits:
        state.limits.give(identity)
    for _, desc, _ in staged.descs:
        state.desc_indices.give(desc)
    for index, key in staged.new_frontends:
        state.frontend_indices.give(index)
        del state.frontends[key]
    for address in staged.new_addresses:
        state.addresses.release(address)


class _PortStaging:
    """Stages one Service port."""

    def __init__(self, state: MapState, staged: Staged, name: ServicePortName) -> None:
        self._state = state
        self._staged = staged
        self._name = name
        self._port = state.port(name)
        self._identity = self._port.identity if self._port else self._new_identity()
        self._source_ranges: dict[Prefixes, int] = {(): 0}
        staged.ports[name] = self._identity

    def stage(self, group: Sequence[Frontend], frontends: Sequence[Frontend]) -> None:
        """`frontends`: those of the group that are served."""
        choices = {
            _offered(choice, each) for each in frontends for choice in (each.local, each.others)
        }
        compared = choices if group[0].scheduler.counts_open else ()
        weights = compared_weights(each.backends for each in compared)
        indices = self._stage_backends(
            {each for choice in choices for each in choice.backends}, weights
        )
        # The port has frontends of both families.
        serving = {backend for each in group for backend in (*each.serving, *each.ejected)}
        of_node = {backend for each in frontends for backend in each.here}
        here = self._stage_here(of_node, indices, serving)
        if frontends:
            by_index = {index: weights.get(each[:2], 1) for each, index in indices.items()}
            self._stage_loads(frontends[0], {**dict.fromkeys(here.values(), 1), **by_index})
        ranges = self._stage_ranges(choices, indices)
        self._staged.kept[self._identity] = self._stage_kept(serving, indices, here)
        self._stage_source_ranges({frontend.allowed_sources for frontend in frontends})
        if frontends:
            self._stage_limits(pack_limits(frontends[0].limits))
        for frontend in frontends:
            self._stage_frontend(frontend, ranges)

    def _new_identity(self) -> int:
        record = pack_name(self._name)
        identity = _take("lb_names", self._state.take_identity)
        self._staged.names.append((identity, record))
        return identity

    def _stage_backends(
        self, backends: Iterable[Backend], weights: Mapping[tuple[Address, int], int]
    ) -> Mapping[Backend, int]:
        sockets = {backend: self._socket(backend) for backend in backends}
        flags = dict.fromkeys(sockets.values(), USABLE)
        for backend, socket in sockets.items():
            flags[socket] |= backend_flags(backend)
        by_socket = {socket: weights.get(each[:2], 0) for each, socket in sockets.items()}
        known = self._known_backends()
        for socket in sorted(flags):
            state = BackendFields(flags[socket], by_socket[socket])
            known[socket] = self._stage_backend(known.get(socket), socket, state)
        return {backend: known[socket] for backend, socket in sockets.items()}

    def _stage_loads(self, frontend: Frontend, weights: Mapping[int, int]) -> None:
        """If a scheduler compares them, a new backend starts with the mean of the others, or it
        would get all connections; with a limit at half of that at most, so that it gets some. Where
        nothing was counted before, all start with nothing.

        `weights`: by index.
        """
        counted = self._counted_before()
        new = sorted(set(self._staged.new_backends).intersection(weights) if counted else weights)
        if not frontend.scheduler.counts_open:
            nothing = pack_open(0)
            self._staged.open_counts += [(index, nothing) for index in new * frontend.counts_open]
            return
        others = sorted(weights.keys() - set(new))
        found = {index: unpack_open(value) for index, value in self._values("lb_open", others)}
        total, whole = sum(found.values()), sum(weights[index] for index in found) or 1
        limit = frontend.limits.per_endpoint
        most = limit.most // 2 if limit else total
        self._staged.open_counts += [
            (index, pack_open(min(most, total * weights[index] // whole))) for index in new
        ]
        latency = mean_latency(value for _, value in self._values("lb_latencies", others))
        self._staged.latencies += [(index, latency) for index in new]

    def _counted_before(self) -> bool:
        return any(desc.flags & DescFlag.LB_DESC_COUNTS_OPEN for desc in self._descs())

    def _descs(self) -> Iterator[DescRecord]:
        """Those that are in force."""
        return filter(None, map(self._state.desc, self._port.frontends if self._port else ()))

    def _values(self, name: str, indices: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        for index in indices:
            if value := self._state.maps[name].lookup(pack_index(index)):
                yield index, value

    def _stage_here(
        self,
        of_node: Collection[Backend],
        named: Mapping[Backend, int],
        serving: Collection[Backend],
    ) -> Mapping[bytes, int]:
        """By socket, the index of each backend here that others may send to, even in no range."""
        self._staged.here[self._identity] = frozenset()
        if not of_node:
            return {}
        named_here = {self._socket(each): index for each, index in named.items() if each.local}
        known = {**self._known_backends(), **named_here}
        kept = set(map(self._socket, serving))
        found = {}
        for backend in sorted(of_node):
            socket, flags = self._socket(backend), backend_flags(backend)
            index = known.get(socket)
            if index is None:
                state = BackendFields(flags | SERVING * (socket in kept))
                index = self._stage_backend(None, socket, state)
            elif socket not in named_here and socket not in kept:
                before = BackendRecord.unpack(self._state.backends[index]).flags
                kept_flags = before & (USABLE | SERVING | TRIAL)
                self._stage_state(index, BackendFields(kept_flags | flags))
            found[socket] = index
        there = self._port.here if self._port else frozenset()
        self._staged.here[self._identity] = frozenset(found.values())
        self._staged.new_here += [
            (index, pack_pod_key(socket, self._identity))
            for socket, index in found.items()
            if index not in there
        ]
        return found

    def _stage_kept(
        self,
        serving: Collection[Backend],
        named: Mapping[Backend, int],
        here: Mapping[bytes, int],
    ) -> frozenset[int]:
        """The backends that get no new flows, but may still have some."""
        known = {**self._known_backends(), **here} if serving else {}
        found = {known.get(self._socket(backend)): backend for backend in serving}
        kept = {index: each for index, each in found.items() if index is not None}
        for index in named.values():
            kept.pop(index, None)
        for index in kept.keys() - set(self._staged.new_backends):
            # While anything still refers to it, keep its flags for usable and on trial.
            before = BackendRecord.unpack(self._state.backends[index]).flags & (USABLE | TRIAL)
            flags = before | SERVING | backend_flags(kept[index])
            self._stage_state(index, BackendFields(flags))
        return frozenset(kept)

    def _socket(self, backend: Backend) -> bytes:
        return pack_socket(backend.address, backend.port, self._name.protocol)

    def _stage_state(self, index: int, state: BackendFields) -> None:
        packed = self._state.backends[index]
        if state_of(packed) != state:
            old = BackendRecord.unpack(packed)
            self._stage_failures(index, state.flags & ~old.flags)
            new = old._replace(flags=state.flags, weight=state.weight)
            self._staged.backends.append((index, new.pack()))

    def _stage_failures(self, index: int, added: int) -> None:
        """Start the count when an endpoint is first watched, at one when it is put on trial."""
        if added & (WATCHED | TRIAL):
            self._staged.failures.append((index, TRIAL_COUNT if added & TRIAL else 0))

    def _known_backends(self) -> dict[bytes, int]:
        if not self._port:
            return {}
        records = self._state.backends
        return {records[index][:_SOCKET_SIZE]: index for index in self._port.backends}

    def _stage_backend(self, index: int | None, socket: bytes, state: BackendFields) -> int:
        maps, staged = self._state, self._staged
        if index is None:
            index = _take("lb_backends", maps.backend_indices.take)
            staged.new_backends.append(index)
            serial = serial_of(maps.backends[index])
            if serial:
                staged.reused_backends.append(index)
            serial = _following(serial or maps.epoch)
            record = pack_backend(socket, state, serial, self._identity)
            self._stage_failures(index, state.flags)
            staged.backends.append((index, record))
            return index
        self._stage_state(index, state)
        return index

    def _stage_ranges(
        self, choices: Iterable[_Offered], indices: Mapping[Backend, int]
    ) -> Mapping[_Offered, BackendRange]:
        """Ranges of slots sorted by backend index: programs search them."""
        known = self._known_ranges()
        return {choice: self._stage_range(choice, indices, known) for choice in choices}

    def _known_ranges(self) -> dict[_Contents, BackendRange]:
        state, known = self._state, {_Contents(b"", 0, ()): BackendRange(0, 0, 0)}
        kinds = {
            (each, SCHEDULERS[desc.scheduler].has_table)
            for desc in self._descs()
            for each in backend_ranges(desc)
        }
        for each, is_hashed in kinds:
            slots = state.slots.span(each.base, each.length)
            table = state.slots.span(each.base + each.length, each.table)
            weights = weights_in(table, array("I", slots), is_hashed=is_hashed)
            known[_Contents(slots, is_hashed * each.table, tuple(weights))] = each
        return known

    def _stage_range(
        self,
        choice: _Offered,
        indices: Mapping[Backend, int],
        known: dict[_Contents, BackendRange],
    ) -> BackendRange:
        own = [indices[each] for each in choice.backends]
        slots, table = array("I", sorted(own)), choice.table
        weights = {indices[each]: each.weight for each in choice.backends}
        key = _Contents(slots.tobytes(), choice.lookup_slots, tuple(map(weights.get, slots)))
        if key not in known and not self._may_have_table(len(slots), table):
            table, key = 0, _Contents(slots.tobytes(), 0, (1,) * len(slots))
        if key not in known:
            base = _take("lb_slots", self._state.slot_ranges.take, len(slots) + table).base
            known[key] = BackendRange(base, len(slots), table)
            if table:
                slots.extend(own[each] for each in table_of(choice.backends, choice.lookup_slots))
            self._staged.slots.append((known[key].whole, slots.tobytes()))
        return known[key]

    def _may_have_table(self, count: int, table: int) -> bool:
        """Whether there is room for it, or a larger map would be made."""
        pool = self._state.slot_ranges
        if pool.capacity < MOST_SLOTS or pool.fits(count + table):
            return True
        text = "no room for a table of %s slots: each node chooses on its own, whatever the weights"
        _log.warning(text, table, extra=fields(service=self._name))
        return False

    def _stage_source_ranges(self, wanted: Iterable[Prefixes]) -> None:
        sets, known = self._state.source_ranges, self._source_ranges
        if self._port:
            known |= {sets.prefixes(identity): identity for identity in self._port.source_ranges}
        for prefixes in wanted:
            if prefixes not in known:
                known[prefixes] = _take("lb_src_ranges", sets.take, prefixes)
                self._staged.source_ranges.append(known[prefixes])

    def _stage_limits(self, record: bytes) -> None:
        known = self._state.limits.of(self._identity)
        if record and record != known:
            if known is None:
                _take("lb_limits", self._state.limits.take, self._identity)
            self._staged.limits[self._identity] = record

    def _stage_frontend(self, frontend: Frontend, ranges: Mapping[_Offered, BackendRange]) -> None:
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
        self, key: bytes, frontend: Frontend, ranges: Mapping[_Offered, BackendRange]
    ) -> DescRecord:
        local, others = (
            ranges[_offered(choice, frontend)] for choice in (frontend.local, frontend.others)
        )
        return DescRecord(
            key,
            self._identity,
            *(local.base, local.length, if_empty(frontend.local), local.table),
            *(others.base, others.length, if_empty(frontend.others), others.table),
            desc_type(frontend),
            desc_flags(frontend),
            scheduler_code(frontend),
            frontend.affinity_timeout,
            self._source_ranges[frontend.allowed_sources],
        )


def _following(serial: int) -> int:
    return serial % _LAST_SERIAL + 1


def _take(map_name: str, take: Callable[..., _Taken], *args: object) -> _Taken:
    try:
        return take(*args)
    except NoRoomError as error:
        raise MapError(map_name, "update", E2BIG) from error

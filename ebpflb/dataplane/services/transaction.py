# SPDX-License-Identifier: Apache-2.0
"""The order of writes.

New things come first, each complete before anything names it: backends, slots, source ranges,
names, descriptors; then, once all CPUs see that, the words of lb_current, each of which commits
one frontend; then lb_frontends for the new ones. When all that is new is there, the flags of
addresses change; then what goes is taken away in reverse. What a program may still be reading is
not touched but retired, with one exception: the flags of a backend, a single byte, change in place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.libc import order_writes
from ebpflb.dataplane.layout.records import (
    SERVING,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketAddress,
)
from ebpflb.dataplane.services.map_state import MapState, Port
from ebpflb.dataplane.services.slots import IndexRange
from ebpflb.dataplane.services.staging import Staged
from ebpflb.model.address import Protocol
from ebpflb.model.service import ServiceName


class _Unnamed(NamedTuple):
    """What the ports concerned no longer name."""

    ranges: set[IndexRange]
    backends: set[int]
    source_ranges: set[int]


class Transaction:
    """Some Services that change together: `add()` as often as needed, then `finish()`.

    Every method raises MapError; the state is then unknown. `ended_udp`: whether flows and sockets
    of UDP may have a backend that has gone.
    """

    def __init__(self, state: MapState) -> None:
        self.ended_udp = False
        self._state = state
        self._touched: dict[int, Port] = {}
        self._kept: dict[ServiceName, set[int]] = {}
        self._old_descs: list[int] = []

    def add(self, staged: Sequence[Staged]) -> None:
        """Write what is new of these Services, and commit it."""
        state = self._state
        self._clear_counters(staged)
        for service in staged:
            for index, record in service.backends:
                state.backends.set(index, record)
        state.backends.flush()
        for service in staged:
            for place, content in service.slots:
                state.slots.set_span(place.base, content)
        state.slots.flush()
        state.source_ranges.write(each for service in staged for each in service.source_ranges)
        names = [(_key(index), name) for service in staged for index, name in service.names]
        state.maps["lb_names"].update_batch(names)
        for service in staged:
            for _, index, record in service.descs:
                state.descs.set(index, record)
        state.descs.flush()
        order_writes()
        self._commit(staged)

    def _clear_counters(self, staged: Sequence[Staged]) -> None:
        used_before = self._state.used_before
        frontends = (index for service in staged for index, _ in service.new_frontends)
        self._clear("lb_count_front", (index for index in frontends if used_before[index]))
        self._clear("lb_count_back", (i for service in staged for i in service.reused_backends))

    def _clear(self, name: str, indices: Iterable[int]) -> None:
        counters = self._state.maps[name]
        zero = bytes(counters.value_size)
        counters.update_batch([(_key(index), zero) for index in indices])

    def _commit(self, staged: Sequence[Staged]) -> None:
        state = self._state
        for service in staged:
            self._kept[service.service] = service.frontends
            for name, identity in service.ports.items():
                port = state.ports.get(identity) or state.add_port(name, identity)
                if port.kept != service.kept[identity]:
                    port.kept = service.kept[identity]
                    self._touched[identity] = port
            for frontend, index, record in service.descs:
                self._replace_desc(frontend, index, DescRecord.unpack(record))
        state.current.flush()
        new = [(key, _key(index)) for service in staged for index, key in service.new_frontends]
        state.maps["lb_frontends"].update_batch(new)

    def _replace_desc(self, frontend: int, index: int, new: DescRecord) -> None:
        state = self._state
        self._drop_desc(frontend)
        port = state.ports[new.service]
        port.frontends.append(frontend)
        self._touched[port.identity] = port
        state.addresses.use(new)
        state.current.set_word(frontend, index)

    def _drop_desc(self, frontend: int) -> None:
        state = self._state
        if desc := state.desc(frontend):
            self._old_descs.append(state.current.word(frontend))
            port = state.ports[desc.service]
            port.frontends.remove(frontend)
            self._touched[port.identity] = port
            state.addresses.leave(desc)

    def finish(self, clock: Callable[[], float]) -> None:
        """Take away what these Services no longer have; then it is retired, at that time."""
        state = self._state
        gone = {frontend: desc.frontend for frontend, desc in self._gone()}
        for frontend in gone:
            self._drop_desc(frontend)
        state.addresses.write()
        state.maps["lb_frontends"].delete_batch(list(gone.values()))
        for frontend, key in gone.items():
            state.current.set_word(frontend, 0)
            state.used_before[frontend] = 1
            del state.frontends[key]
        state.current.flush()
        unnamed = self._unname()
        self._clear_flags(unnamed.backends)
        self._remove_empty_ports()
        now = clock()
        state.frontend_indices.retire(gone, now)
        state.desc_indices.retire(self._old_descs, now)
        state.slot_ranges.retire(unnamed.ranges, now)
        state.backend_indices.retire(unnamed.backends, now)
        state.source_ranges.retire(unnamed.source_ranges, now)

    def _gone(self) -> Iterator[tuple[int, DescRecord]]:
        state = self._state
        for service, kept in self._kept.items():
            for port in state.services.get(service, {}).values():
                for frontend in port.frontends:
                    if frontend not in kept and (desc := state.desc(frontend)):
                        yield frontend, desc

    def _unname(self) -> _Unnamed:
        unnamed = _Unnamed(set(), set(), set())
        for port in self._touched.values():
            before = set(port.ranges), set(port.backends), set(port.source_ranges)
            self._state.refresh(port)
            unnamed.ranges.update(before[0].difference(port.ranges))
            unnamed.backends.update(before[1].difference(port.backends))
            unnamed.source_ranges.update(before[2].difference(port.source_ranges))
        return unnamed

    def _clear_flags(self, gone: Iterable[int]) -> None:
        records = self._state.backends
        for index in gone:
            record = BackendRecord.unpack(records[index])
            protocol = SocketAddress.unpack(record.socket).protocol
            self.ended_udp = self.ended_udp or protocol == Protocol.UDP
            records.set(index, record.without(USABLE | SERVING).pack())
        for port in self._touched.values():
            for index in port.kept:
                records.set(index, BackendRecord.unpack(records[index]).without(USABLE).pack())
        records.flush()

    def _remove_empty_ports(self) -> None:
        state = self._state
        empty = [port for port in self._touched.values() if not port.frontends]
        state.maps["lb_names"].delete_batch([_key(port.identity) for port in empty])
        for port in empty:
            state.remove_port(port)
        state.names_left += len(empty)


def _key(index: int) -> bytes:
    return index.to_bytes(4, byteorder)

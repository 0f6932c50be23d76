# SPDX-License-Identifier: Apache-2.0
"""The order of writes.

New items come first, each complete before anything refers to it: backends, slots, source ranges,
limits, names, descriptors; then, once all CPUs see them, the words of lb_current, each of which
commits one frontend; then lb_frontends for the new ones. When everything new is there, the flags of
addresses change; then old items are removed in reverse order. What a program may still be reading
is not touched but retired, with two exceptions: the flags and the weight of a backend change in
place, and an element of lb_limits is replaced.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ebpflb.dataplane.kernel.libc import order_writes
from ebpflb.dataplane.layout.records import (
    EJECTION_STATE,
    SERVING,
    TRIAL,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketRecord,
    pack_failures,
    pack_index,
    pack_pod_key,
)
from ebpflb.dataplane.services.map_state import MapState, Port
from ebpflb.dataplane.services.slots import IndexRange
from ebpflb.dataplane.services.staging import Staged
from ebpflb.model.address import Protocol
from ebpflb.model.service import ServiceName


class _Unnamed(NamedTuple):
    """What the ports involved no longer refer to."""

    ranges: set[IndexRange]
    backends: set[int]
    source_ranges: set[int]


class Transaction:
    """Services that change together: call `add()` as often as needed, then `finish()`.

    Every method raises MapError; the state is then unknown. `ended_udp`: whether UDP flows and
    sockets may have a backend that is gone.
    """

    def __init__(self, state: MapState) -> None:
        self.ended_udp = False
        self._state = state
        self._touched: dict[int, Port] = {}
        self._kept: dict[ServiceName, set[int]] = {}
        self._ports: dict[ServiceName, set[int]] = {}
        self._old_descs: list[int] = []
        # Keys in lb_pods_here.
        self._not_here: list[bytes] = []

    def add(self, staged: Sequence[Staged]) -> None:
        """Write the new items of these Services, and commit them."""
        state = self._state
        self._clear_counters(staged)
        for name, field in (("lb_open", "open_counts"), ("lb_latencies", "latencies")):
            found = (each for service in staged for each in getattr(service, field))
            state.maps[name].update_batch([(pack_index(index), value) for index, value in found])
        for service in staged:
            for index, record in service.backends:
                state.backends.set(index, record)
        state.backends.flush()
        for service in staged:
            for place, content in service.slots:
                state.slots.set_span(place.base, content)
        state.slots.flush()
        self._write_elements(staged)
        for service in staged:
            for _, index, record in service.descs:
                state.descs.set(index, record)
        state.descs.flush()
        order_writes()
        self._commit(staged)

    def _write_elements(self, staged: Sequence[Staged]) -> None:
        """Those of hashes that descriptors refer to."""
        state = self._state
        pods = [(key, pack_index(index)) for service in staged for index, key in service.new_here]
        state.maps["lb_pods_here"].update_batch(pods)
        state.source_ranges.write(each for service in staged for each in service.source_ranges)
        limits = (each for service in staged for each in service.limits.items())
        state.limits.write(dict(limits))
        names = [(pack_index(index), name) for service in staged for index, name in service.names]
        state.maps["lb_names"].update_batch(names)

    def _clear_counters(self, staged: Sequence[Staged]) -> None:
        used_before = self._state.used_before
        frontends = (index for service in staged for index, _ in service.new_frontends)
        self._clear("lb_count_front", (index for index in frontends if used_before[index]))
        self._clear("lb_count_back", (i for service in staged for i in service.reused_backends))
        failures = [each for service in staged for each in service.failures]
        counts = [(pack_index(index), pack_failures(in_a_row)) for index, in_a_row in failures]
        self._state.maps["lb_failures"].update_batch(counts)

    def _clear(self, name: str, indices: Iterable[int]) -> None:
        counters = self._state.maps[name]
        zero = bytes(counters.value_size)
        counters.update_batch([(pack_index(index), zero) for index in indices])

    def _commit(self, staged: Sequence[Staged]) -> None:
        state = self._state
        for service in staged:
            self._kept[service.service] = service.frontends
            self._ports[service.service] = set(service.ports.values())
            for name, identity in service.ports.items():
                port = state.ports.get(identity) or state.add_port(name, identity)
                self._keep(port, service.kept[identity], service.here[identity])
            for frontend, index, record in service.descs:
                self._replace_desc(frontend, index, DescRecord.unpack(record))
        state.current.flush()
        new = [
            (key, pack_index(index)) for service in staged for index, key in service.new_frontends
        ]
        state.maps["lb_frontends"].update_batch(new)

    def _keep(self, port: Port, kept: frozenset[int], here: frozenset[int]) -> None:
        if (port.kept, port.here) == (kept, here):
            return
        records = (BackendRecord.unpack(self._state.backends[each]) for each in port.here - here)
        self._not_here += [pack_pod_key(each.socket, each.service) for each in records]
        port.kept, port.here = kept, here
        self._touched[port.identity] = port

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
        """Remove what these Services no longer have; it is retired with the time of `clock`."""
        state = self._state
        self._forget_spare()
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
        state.maps["lb_pods_here"].delete_batch(self._not_here)
        self._clear_flags(unnamed.backends)
        touched = self._touched.values()
        state.limits.remove([port.identity for port in touched if not port.has_limits])
        self._remove_empty_ports()
        now = clock()
        state.frontend_indices.retire(gone, now)
        state.desc_indices.retire(self._old_descs, now)
        state.slot_ranges.retire(unnamed.ranges, now)
        state.backend_indices.retire(unnamed.backends, now)
        state.source_ranges.retire(unnamed.source_ranges, now)

    def _forget_spare(self) -> None:
        """Ports that are no longer wanted keep no backends."""
        for service, ports in self._ports.items():
            for port in self._state.services.get(service, ()):
                if port.identity not in ports:
                    self._keep(port, frozenset(), frozenset())

    def _gone(self) -> Iterator[tuple[int, DescRecord]]:
        state = self._state
        for service, kept in self._kept.items():
            for port in state.services.get(service, ()):
                for frontend in port.frontends:
                    if frontend not in kept and (desc := state.desc(frontend)):
                        yield frontend, desc

    def _unname(self) -> _Unnamed:
        unnamed = _Unnamed(set(), set(), set())
        for port in self._touched.values():
            before = set(port.ranges), set(port.backends), set(port.source_ranges)
            # Its frontends may belong to another Service by now.
            if port.here and not self._state.is_exposed(port):
                self._keep(port, port.kept, frozenset())
            self._state.refresh(port)
            unnamed.ranges.update(before[0].difference(port.ranges))
            unnamed.backends.update(before[1].difference(port.backends))
            unnamed.source_ranges.update(before[2].difference(port.source_ranges))
        return unnamed

    def _clear_flags(self, gone: Iterable[int]) -> None:
        for index in gone:
            self._end(index)
        for port in self._touched.values():
            for index in port.spare - port.kept:
                self._end(index)
            for index in port.kept:
                record = BackendRecord.unpack(self._state.backends[index])
                self._state.backends.set(index, record.without(USABLE | TRIAL).pack())
        self._state.backends.flush()

    def _end(self, index: int) -> None:
        """The backend no longer serves any flow that this node sent to it."""
        record = BackendRecord.unpack(self._state.backends[index])
        if record.flags & (USABLE | SERVING):
            protocol = SocketRecord.unpack(record.socket).protocol
            self.ended_udp = self.ended_udp or protocol == Protocol.UDP
        self._state.backends.set(index, record.without(USABLE | SERVING | EJECTION_STATE).pack())

    def _remove_empty_ports(self) -> None:
        state = self._state
        touched = self._touched.values()
        empty = [port for port in touched if not port.frontends and not port.kept]
        state.maps["lb_names"].delete_batch([pack_index(port.identity) for port in empty])
        for port in empty:
            state.remove_port(port)
        state.names_left += len(empty)

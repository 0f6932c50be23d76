# SPDX-License-Identifier: Apache-2.0
"""Reads the maps back after a restart, and cleans up after an interrupted sync.

A frontend counts if everything that it refers to exists. Anything else was left behind: it is
cleared where a program or a tool could see it, and simply free otherwise. A complete sync leaves
nothing behind, and then reading back writes nothing.
"""

from array import array
from collections.abc import Mapping
from sys import byteorder

from ebpflb.dataplane.layout.records import (
    SERVING,
    USABLE,
    BackendRecord,
    DescRecord,
    SocketRecord,
    pack_index,
    pack_pod_key,
    unpack_name,
)
from ebpflb.dataplane.layout.structs import LbBackend
from ebpflb.dataplane.services.map_state import MapState, Port, ranges_of
from ebpflb.dataplane.services.slots import IndexRange

_FLAGS = LbBackend.flags.offset
_SERVICE = LbBackend.service.offset


def read_back(state: MapState) -> None:
    """Fill a new state from its maps, and repair them. Raises MapError.

    What is free now must not be allocated before a grace period has passed.
    """
    for mirror in (state.current, state.descs, state.backends):
        mirror.load()
    state.addresses.load()
    state.source_ranges.load()
    state.limits.load()
    names = {_number(key): value for key, value in state.maps["lb_names"].items()}
    frontends = {key: _number(value) for key, value in state.maps["lb_frontends"].items()}
    state.slots.load(_slots_in_use(state))
    for key, index in frontends.items():
        if desc := _whole_desc(state, key, index):
            _add_frontend(state, index, desc, names)
    _restore_kept(state, names)
    _restore_here(state)
    _mark_used(state, names)
    _repair(state, frontends, names)


def _number(value: bytes) -> int:
    return int.from_bytes(value, byteorder)


def _slots_in_use(state: MapState) -> int:
    """How many slots, counted from the first, descriptors may refer to; others are not read."""
    words = [word for word in state.current.column(0, "Q") if 0 < word < state.descs.size]
    descs = (DescRecord.unpack(state.descs[word]) for word in words)
    return max((sum(place) for desc in descs for place in ranges_of(desc)), default=0)


def _whole_desc(state: MapState, key: bytes, index: int) -> DescRecord | None:
    if index >= state.frontend_indices.size or state.current.word(index) >= state.descs.size:
        return None
    desc = state.desc(index)
    if desc is None or desc.frontend != key:
        return None
    if desc.source_ranges and not state.source_ranges.prefixes(desc.source_ranges):
        return None
    return desc if all(_is_whole(state, place) for place in ranges_of(desc)) else None


def _is_whole(state: MapState, place: IndexRange) -> bool:
    if place.base + place.length > state.slots.size:
        return False
    return max(array("I", state.slots.span(*place))) < state.backends.size


def _add_frontend(
    state: MapState, index: int, desc: DescRecord, names: Mapping[int, bytes]
) -> None:
    if desc.service not in names:
        return
    name = unpack_name(names[desc.service], desc.protocol)
    port = state.port(name) or state.add_port(name, desc.service)
    if port.identity == desc.service:
        port.frontends.append(index)
        state.frontends[desc.frontend] = index


def _mark_used(state: MapState, names: Mapping[int, bytes]) -> None:
    for port in state.ports.values():
        state.refresh(port)
    ports = state.ports.values()
    state.frontend_indices.restore(state.frontends.values())
    state.desc_indices.restore(map(state.current.word, state.frontends.values()))
    state.slot_ranges.restore(place for port in ports for place in port.ranges)
    state.backend_indices.restore(index for port in ports for index in port.backends)
    state.source_ranges.restore(each for port in ports for each in port.source_ranges)
    state.names_left = state.maps["lb_names"].max_entries - len(state.ports)
    state.skip_identities(max([*names, *state.backends.column(_SERVICE)], default=0))
    if not state.descs.is_blank:
        state.used_before[:] = b"\1" * len(state.used_before)


def _restore_kept(state: MapState, names: Mapping[int, bytes]) -> None:
    """Also for ports that no longer have a frontend."""
    services = state.backends.column(_SERVICE)
    for index, flags in enumerate(state.backends.column(_FLAGS, "H")):
        identity = services[index]
        if flags & SERVING and identity in names:
            port = state.ports.get(identity) or _add_port(state, index, identity, names)
            if port.identity == identity:
                port.kept |= {index}


def _restore_here(state: MapState) -> None:
    """For ports that clients outside may reach; deletes what belongs to none of them."""
    pods, lost = state.maps["lb_pods_here"], []
    for key, value in pods.items():
        index = _number(value)
        port = _port_with_pod(state, key, index)
        if port:
            port.here |= {index}
        else:
            lost.append(key)
    pods.delete_batch(lost)


def _port_with_pod(state: MapState, key: bytes, index: int) -> Port | None:
    if index >= state.backends.size:
        return None
    record = BackendRecord.unpack(state.backends[index])
    port = state.ports.get(record.service)
    if port is None or key != pack_pod_key(record.socket, record.service):
        return None
    return port if state.is_exposed(port) else None


def _add_port(state: MapState, backend: int, identity: int, names: Mapping[int, bytes]) -> Port:
    socket = SocketRecord.unpack(BackendRecord.unpack(state.backends[backend]).socket)
    name = unpack_name(names[identity], socket.protocol)
    return state.port(name) or state.add_port(name, identity)


def _repair(state: MapState, frontends: Mapping[bytes, int], names: Mapping[int, bytes]) -> None:
    lost = [key for key in frontends if key not in state.frontends]
    state.maps["lb_frontends"].delete_batch(lost)
    _clear_words(state)
    _clear_backends(state)
    state.limits.keep([port.identity for port in state.ports.values() if port.has_limits])
    nameless = [identity for identity in names if identity not in state.ports]
    state.maps["lb_names"].delete_batch(list(map(pack_index, nameless)))
    _repair_addresses(state)


def _clear_words(state: MapState) -> None:
    used = set(state.frontends.values())
    for index, word in enumerate(state.current.column(0, "Q")):
        if word and index not in used:
            state.current.set_word(index, 0)
    state.current.flush()


def _clear_backends(state: MapState) -> None:
    ports = state.ports.values()
    named = {index for port in ports for index in set(port.backends) - port.spare}
    kept = {index for port in ports for index in port.kept}
    for index, flags in enumerate(state.backends.column(_FLAGS, "H")):
        wrong = USABLE if index in kept else 0 if index in named else USABLE | SERVING
        if flags & wrong:
            record = BackendRecord.unpack(state.backends[index])
            state.backends.set(index, record.without(wrong).pack())
    state.backends.flush()


def _repair_addresses(state: MapState) -> None:
    for frontend in state.frontends.values():
        if desc := state.desc(frontend):
            state.addresses.reserve(desc.address, desc.type)
            state.addresses.use(desc)
    state.addresses.loaded()

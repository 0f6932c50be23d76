# SPDX-License-Identifier: Apache-2.0
"""Compares the maps with the local copy, a part at a time, so that changes get in between.

The copy is what was written; somebody else may have written since then, or deleted.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap, split
from ebpflb.dataplane.layout.records import (
    BackendRecord,
    pack_index,
    pack_name,
    pack_pod_key,
    service_of_pod,
)
from ebpflb.dataplane.services.map_state import MapState, Port
from ebpflb.dataplane.services.mirror import Mirror

# Elements of a hash in a part: one or two milliseconds.
_SOME = 512

Parts = Iterator[str]
"""Each step compares the next part as it is at that moment: the map's name if it differs."""


def compared(state: MapState) -> Parts:
    """All maps that only the sync fills. MapError."""
    for name, mirror in (
        ("lb_current", state.current),
        ("lb_descs", state.descs),
        ("lb_slots", state.slots),
        ("lb_backends", state.backends),
        *state.addresses.mirrors,
    ):
        yield from _array(name, mirror)
    for name, keys, wanted in (
        ("lb_frontends", state.frontends.keys, partial(_frontend, state)),
        ("lb_addrs", state.addresses.keys, state.addresses.value),
        ("lb_src_ranges", state.source_ranges.keys, state.source_ranges.value),
        ("lb_limits", state.limits.keys, state.limits.value),
        ("lb_names", partial(map, pack_index, state.ports), partial(_name, state)),
        ("lb_pods_here", partial(_pods_here, state), partial(_pod_here, state)),
    ):
        yield from _hash(state.maps[name], keys, wanted)


def _frontend(state: MapState, key: bytes) -> bytes | None:
    index = state.frontends.get(key)
    return None if index is None else pack_index(index)


def _name(state: MapState, key: bytes) -> bytes | None:
    port = state.ports.get(int.from_bytes(key, byteorder))
    return pack_name(port.name) if port else None


def _pods_here(state: MapState) -> Iterator[bytes]:
    return (key for port in state.ports.values() for key, _ in _pods_of(state, port))


def _pod_here(state: MapState, key: bytes) -> bytes | None:
    port = state.ports.get(service_of_pod(key))
    return dict(_pods_of(state, port)).get(key) if port else None


def _pods_of(state: MapState, port: Port) -> Iterator[tuple[bytes, bytes]]:
    for index in port.here:
        record = BackendRecord.unpack(state.backends[index])
        yield pack_pod_key(record.socket, record.service), pack_index(index)


def _array(name: str, mirror: Mirror) -> Parts:
    return (name if differs else "" for differs in mirror.differences())


def _hash(
    target: BpfMap,
    keys: Callable[[], Iterable[bytes]],
    wanted: Callable[[bytes], bytes | None],
) -> Parts:
    """First what is there, then what should be; a key that went meanwhile is wanted no more."""
    for chunk in target.chunks(_SOME):
        there = split(target, chunk.keys, chunk.values)
        yield target.name if any(wanted(key) != value for key, value in there) else ""
    now = list(keys())
    for first in range(0, len(now), _SOME):
        some = now[first : first + _SOME]
        yield target.name if any(target.lookup(key) != wanted(key) for key in some) else ""

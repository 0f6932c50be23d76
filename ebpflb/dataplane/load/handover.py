# SPDX-License-Identifier: Apache-2.0
"""What a new generation takes over from the one before it.

Maps that did not change are shared: both generations' programs use the same map while the hooks
move over, so nothing is lost in between. Maps that only grew are copied. The maps of the Services
go together, because they are bound by indices; after a change of their layout they are left
empty and written from the desired state. Fields that are new at the end of a value are zero in
what is copied.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, open_maps
from ebpflb.dataplane.kernel.uapi import Exist, MapInfo
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.map_specs import COUNT_MAPS, FLOW_MAPS, SERVICE_MAPS, MapSpec
from ebpflb.dataplane.layout.structs import FLOW_VERSION, LAYOUT_VERSION, META_MAGIC, Meta
from ebpflb.dataplane.load.pins import Generation


def share_maps(old: Generation, new: Generation, sizes: Sizes) -> frozenset[str]:
    """Pin the unchanged maps of `old` in `new`, before its programs are compiled."""
    meta = read_meta(old)
    shared: set[str] = set()
    if meta is None:
        return frozenset()
    if meta.layout == LAYOUT_VERSION and _unchanged(old, SERVICE_MAPS, sizes) == set(SERVICE_MAPS):
        shared |= set(SERVICE_MAPS)
    if meta.flows == FLOW_VERSION:
        shared |= _unchanged(old, FLOW_MAPS, sizes)
    shared |= _unchanged(old, COUNT_MAPS, sizes)
    for name in shared:
        _pin_again(old, new, name)
    return frozenset(shared)


def copy_maps(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy what grew. MapError when something does not fit."""
    meta = read_meta(old)
    if meta is not None and meta.layout == LAYOUT_VERSION:
        _copy(open_maps(old.maps), open_maps(new.maps), set(SERVICE_MAPS) - shared)
    copy_flows(old, new, shared)


def copy_flows(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy the flows that `new` does not have; again when the last hook has moved."""
    meta = read_meta(old)
    if meta is not None and meta.flows == FLOW_VERSION:
        _copy(open_maps(old.maps), open_maps(new.maps), set(FLOW_MAPS) - shared, missing_only=True)


def shared_maps(old: Generation, new: Generation) -> frozenset[str]:
    """The maps that both generations use."""
    names = {path.name for path in old.maps.iterdir()} & {path.name for path in new.maps.iterdir()}
    return frozenset(name for name in names if _info(old, name).id == _info(new, name).id)


def _unchanged(old: Generation, specs: Mapping[str, MapSpec], sizes: Sizes) -> set[str]:
    return {name for name, spec in specs.items() if _shape(old, name) == spec.shape(sizes)}


def _shape(generation: Generation, name: str) -> tuple[int, int, int] | None:
    if not (generation.maps / name).exists():
        return None
    facts = _info(generation, name)
    return facts.key_size, facts.value_size, facts.max_entries


def _info(generation: Generation, name: str) -> MapInfo:
    fd = libbpf.obj_get(generation.maps / name)
    try:
        return libbpf.map_info(fd)
    finally:
        os.close(fd)


def _pin_again(old: Generation, new: Generation, name: str) -> None:
    fd = libbpf.obj_get(old.maps / name)
    try:
        libbpf.obj_pin(fd, new.maps / name)
    finally:
        os.close(fd)


def _copy(old: MapSet, new: MapSet, names: set[str], *, missing_only: bool = False) -> None:
    for name in old.keys() & names:
        source, target = old[name], new[name]
        elements = ((key, _fitted(value, source, target)) for key, value in source.items())
        if missing_only:
            _add_missing(target, elements)
        else:
            target.update_batch(list(elements))


def _add_missing(target: BpfMap, elements: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in elements:
        if any(value) and not any(target.lookup(key) or b""):
            target.update(key, value, exist=Exist.ANY)


def _fitted(value: bytes, source: BpfMap, target: BpfMap) -> bytes:
    if source.value_size == target.value_size:
        return value
    old, new = source.value_size // source.cpus, target.value_size // target.cpus
    parts = (value[at : at + min(old, new)] for at in range(0, len(value), old))
    return b"".join(part.ljust(new, b"\0") for part in parts)


_KEY = bytes(4)


def read_meta(generation: Generation) -> Meta | None:
    """None when there is none, or it is not ours."""
    maps = open_maps(generation.maps)
    value = maps["lb_meta"].lookup(_KEY) if "lb_meta" in maps else None
    if value is None or len(value) != ctypes.sizeof(Meta):
        return None
    meta = Meta.from_buffer_copy(value)
    return meta if meta.magic == META_MAGIC else None


def write_meta(generation: Generation, source: bytes) -> None:
    """`source`: the hash of what was compiled."""
    meta = Meta(magic=META_MAGIC, layout=generation.layout, flows=FLOW_VERSION)
    meta.source[:] = source
    open_maps(generation.maps)["lb_meta"].update(_KEY, bytes(meta))

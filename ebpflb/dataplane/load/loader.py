# SPDX-License-Identifier: Apache-2.0
"""From C files to pinned maps and programs, and from one generation to the next.

A generation whose source, settings and layout match is used as it is: nothing is compiled.
Otherwise a new one is made beside it, the hooks move over one by one, and the old one is removed.

Maps that did not change are shared: the programs of both generations use the same map while the
hooks move, so nothing is lost in between. Maps that only grew are copied. The maps of the Services
are shared or copied together, because indices bind them; after a change of their layout they are
left empty and written from the desired state. Fields that are new at the end of a value are zero in
a copy.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, open_maps
from ebpflb.dataplane.kernel.uapi import Exist, MapInfo
from ebpflb.dataplane.layout.capacity import (
    COUNT_MAPS,
    FLOW_MAPS,
    MAPS,
    SERVICE_MAPS,
    MapSpec,
    Sizes,
)
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.layout.structs import FLOW_VERSION, LAYOUT_VERSION, META_MAGIC, LbMeta
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.load.source_text import source_hash, source_text

_META_KEY = bytes(4)

Compile = Callable[[str, Mapping[str, str], Path], None]


class Loader:
    """Makes generations. Errors: CompileError, LoadError, ProbeError, PinError, MapError."""

    def __init__(
        self,
        pins: Pins,
        *,
        has_set_retval: bool,
        has_coarse_clock: bool = True,
        has_sock_ops: bool = True,
        compiler: Compile | None = None,
    ) -> None:
        """What the kernel has: bpf_set_retval refuses at the socket, the coarse clock is faster.

        Without sock_ops the program of that name is not loaded.
        """
        self._pins = pins
        self._features = {
            "LB_HAS_SET_RETVAL": str(int(has_set_retval)),
            "LB_HAS_COARSE_CLOCK": str(int(has_coarse_clock)),
            "LB_HAS_SOCK_OPS": str(int(has_sock_ops)),
        }
        names = [name for name in PROGRAMS if has_sock_ops or name != "lb_sock_ops"]
        self._compile = compiler or partial(compile_and_pin, names=names)

    def load(self, sizes: Sizes) -> Generation:
        """The current generation if it is what a compile would give, else a new one.

        A new one is not the current one yet: write its maps, move the hooks, call `finish()`.
        Maps never shrink.
        """
        current = self._pins.current()
        if current is None:
            return self._make(None, sizes)
        sizes = sizes.at_least(pinned_sizes(current))
        meta = read_meta(current)
        if meta and bytes(meta.source) == self._digest(source_text(), sizes):
            return current
        return self._make(current, sizes)

    def finish(self, generation: Generation) -> None:
        """All hooks run `generation`: take over the last flows and remove the others."""
        current = self._pins.current()
        if current and current != generation:
            _copy_flows(current, generation, _shared_maps(current, generation))
        self._pins.commit(generation)
        self._pins.remove_others(generation)

    def _make(self, current: Generation | None, sizes: Sizes) -> Generation:
        generation = self._pins.create()
        # Their numbers count until here, their memory must not pile up.
        self._pins.remove_unfinished(generation)
        try:
            self._fill(generation, current, sizes)
        except BaseException:
            self._pins.remove(generation)
            raise
        return generation

    def _fill(self, generation: Generation, current: Generation | None, sizes: Sizes) -> None:
        text = source_text()
        shared = _share_maps(current, generation, sizes) if current else frozenset()
        defines = {**self._settings(sizes), "LB_PIN_MAPS": f'"{generation.maps}"'}
        self._compile(text, defines, generation.progs)
        if current:
            _copy_maps(current, generation, shared)
        _write_meta(generation, self._digest(text, sizes))

    def _digest(self, text: str, sizes: Sizes) -> bytes:
        return source_hash(text, self._settings(sizes))

    def _settings(self, sizes: Sizes) -> dict[str, str]:
        return {**sizes.defines(), **self._features}


def pinned_sizes(generation: Generation) -> Sizes:
    """The sizes of a generation's maps; the default where it lacks a map of this layout."""
    found: dict[str, int] = {}
    for name, spec in MAPS.items():
        if isinstance(spec.size, str) and (generation.maps / name).exists():
            found.setdefault(spec.size, int(_info(generation, name).max_entries))
    return Sizes(**found)


def _share_maps(old: Generation, new: Generation, sizes: Sizes) -> frozenset[str]:
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


def _copy_maps(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy what grew. MapError when something does not fit."""
    meta = read_meta(old)
    if meta is not None and meta.layout == LAYOUT_VERSION:
        _copy(open_maps(old.maps), open_maps(new.maps), set(SERVICE_MAPS) - shared)
    _copy_flows(old, new, shared)


def _copy_flows(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy the flows that `new` does not have; again when the last hook has moved."""
    meta = read_meta(old)
    if meta is not None and meta.flows == FLOW_VERSION:
        _copy(open_maps(old.maps), open_maps(new.maps), set(FLOW_MAPS) - shared, missing_only=True)


def _shared_maps(old: Generation, new: Generation) -> frozenset[str]:
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


def read_meta(generation: Generation) -> LbMeta | None:
    """What a generation was made from; None when that is unknown."""
    maps = open_maps(generation.maps)
    value = maps["lb_meta"].lookup(_META_KEY) if "lb_meta" in maps else None
    if value is None or len(value) != ctypes.sizeof(LbMeta):
        return None
    meta = LbMeta.from_buffer_copy(value)
    return meta if meta.magic == META_MAGIC else None


def _write_meta(generation: Generation, source: bytes) -> None:
    """`source`: the hash of what was compiled."""
    meta = LbMeta(magic=META_MAGIC, layout=generation.layout, flows=FLOW_VERSION)
    meta.source[:] = source
    open_maps(generation.maps)["lb_meta"].update(_META_KEY, bytes(meta))

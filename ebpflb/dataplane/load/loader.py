# SPDX-License-Identifier: Apache-2.0
"""From C files to pinned maps and programs, and from one generation to the next.

A generation whose source, settings and layout match is used as it is, without compiling. Otherwise
a new one is created next to it, the hooks move over one by one, and the old one is removed.

Unchanged maps are shared: the programs of both generations use the same map while the hooks move,
so nothing is lost in between. Maps that only grew are copied. The maps of Services are shared or
copied together, because indices link them; after a change of their layout they start empty and are
written from the desired state. Fields added at the end of a value are zero in a copy.

Maps whose size may change are created here and not by the compiled text, so that one compiled text
serves nodes of all sizes and nothing is compiled when a map grows. Flow tables keep their size as
long as their layout does not change, because a copy misses changes made to the table meanwhile.
There are two exceptions. lb_conntrack gets a larger one when it is more than half full: until all
hooks have moved, both generations leave new flows in lb_ct_short, which they share. Tables that
evict get larger ones when the agent asks for it: until all hooks have moved, both generations put
new flows into lb_conntrack and lb_ct_stream, which they share, and none into lb_ct_dsr.
"""

import ctypes
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from errno import ENOENT
from pathlib import Path
from sys import byteorder

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import membarrier, owned
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, open_maps, split, used
from ebpflb.dataplane.kernel.uapi import Exist, MapInfo
from ebpflb.dataplane.layout.capacity import (
    COUNT_MAPS,
    FLOW_MAPS,
    MAPS,
    SERVICE_MAPS,
    SIZED_MAPS,
    MapSpec,
    Sizes,
)
from ebpflb.dataplane.layout.enums import Hook, SettingFlag
from ebpflb.dataplane.layout.programs import PROGRAMS, XDP_PROGRAM
from ebpflb.dataplane.layout.structs import (
    FLOW_VERSION,
    LAYOUT_VERSION,
    META_MAGIC,
    LbConntrack,
    LbMeta,
    LbSettings,
    u32,
)
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.mending import mend
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.load.source_text import source_hash, source_text
from ebpflb.errors import MapError

_ONLY_KEY = bytes(4)
_ESTABLISHED, _TUNNELED = "lb_conntrack", "lb_ct_dsr"
# Tables that may be replaced by larger ones, and the tables used instead meanwhile.
_EVICTING, _DIVERTED_TO = {"lb_ct_short", "lb_ct_udp", _TUNNELED}, {_ESTABLISHED, "lb_ct_stream"}
# Flags for programs while tables are replaced.
_WAYS = SettingFlag.LB_SETTING_HOLD | SettingFlag.LB_SETTING_DIVERT
_NO_WAY = SettingFlag(0)
# The first field of lb_settings in every version.
_FLAGS = slice(LbSettings.flags.offset, LbSettings.flags.offset + LbSettings.flags.size)

Compile = Callable[[str, Mapping[str, str], Path], None]


@dataclass(frozen=True, slots=True)
class Build:
    """LB_<NAME> of bpf/config.h for each: what the kernel has, or the settings ask for.

    bpf_set_retval refuses at the socket, the coarse clock is faster, a route lookup returns the
    MTU. Without sock_ops or XDP, their program is not loaded.
    """

    has_set_retval: bool
    has_coarse_clock: bool = True
    has_fib_mtu: bool = True
    has_sock_ops: bool = True
    has_xdp: bool = True
    has_xdp_frags: bool = True
    has_dsr: bool = True

    def defines(self, sizes: Sizes) -> dict[str, str]:
        """The defines of a compile, except the directory of pins."""
        features = {f"LB_{name.upper()}": str(int(has)) for name, has in asdict(self).items()}
        return {**sizes.defines(), **features}


class Loader:
    """Creates generations. Errors: CompileError, LoadError, ProbeError, PinError, MapError."""

    def __init__(self, pins: Pins, build: Build, compiler: Compile | None = None) -> None:
        self._pins = pins
        self._build = build
        left_out = {"lb_sock_ops"} if not build.has_sock_ops else set()
        left_out |= {XDP_PROGRAM} if not build.has_xdp else set()
        self._programs = PROGRAMS.keys() - left_out
        names = [name for name in PROGRAMS if name in self._programs]
        self._compile = compiler or functools.partial(compile_and_pin, names=names)
        # When new flows began to be diverted, by CLOCK_MONOTONIC in ns.
        self._diverted_at = 0

    def load(self, sizes: Sizes, larger: Set[str] = frozenset()) -> Generation:
        """The current generation if it is what a compile would give, else a new one.

        A new one is not current yet: write its maps, move the hooks, call `finish()`. Maps never
        shrink, and flow tables that can be shared keep their size, except `larger`: names in
        `Sizes` for lb_ct_short, lb_ct_udp and lb_ct_dsr.
        """
        current = self._pins.current()
        if current is None:
            return self._make(None, sizes)
        mend(current)
        sizes = sizes.at_least(pinned_sizes(current)).with_flow_tables(_flow_sizes(current, larger))
        meta = read_meta(current)
        is_whole = _is_whole(current, self._programs)
        if is_whole and meta and bytes(meta.source) == self._digest(source_text(), sizes):
            return current
        return self._make(current, sizes)

    def finish(self, generation: Generation) -> None:
        """All hooks run `generation`: take over the last flows and remove the other generations."""
        current = self._pins.current()
        if current and current != generation:
            shared = _shared_maps(current, generation)
            way = _flags(current)
            if way & SettingFlag.LB_SETTING_HOLD:
                _forget_ended(current, generation)
                shared |= {_ESTABLISHED}
            if way & SettingFlag.LB_SETTING_DIVERT:
                membarrier()
                _catch_up(current, generation, _EVICTING - shared, self._diverted_at)
            _copy_flows(current, generation, shared)
        self._pins.commit(generation)
        self._pins.remove_others(generation)

    def way_of_flows(self, generation: Generation) -> SettingFlag:
        """Flags that its programs also need until it is finished: LB_SETTING_HOLD, _DIVERT."""
        current = self._pins.current()
        return _NO_WAY if current in (None, generation) else _flags(current) & _WAYS

    def _make(self, current: Generation | None, sizes: Sizes) -> Generation:
        generation = self._pins.create()
        # Kept until now for their numbers, but their memory must not pile up.
        self._pins.remove_unfinished(generation)
        try:
            self._fill(generation, current, sizes)
        except BaseException:
            self._pins.remove(generation)
            if current:
                _set_way(current, _NO_WAY)
            raise
        return generation

    def _fill(self, generation: Generation, current: Generation | None, sizes: Sizes) -> None:
        text = source_text()
        shared = _share_maps(current, generation, sizes) if current else frozenset()
        _make_sized_maps(generation, sizes, shared)
        defines = {**self._build.defines(Sizes()), "LB_PIN_MAPS": f'"{generation.maps}"'}
        self._compile(text, defines, generation.progs)
        if current:
            self._diverted_at = time.monotonic_ns()
            if _ESTABLISHED not in shared:
                _set_way(current, SettingFlag.LB_SETTING_HOLD)
            elif shared >= _DIVERTED_TO and not shared >= _EVICTING:
                _set_way(current, SettingFlag.LB_SETTING_DIVERT)
            _copy_maps(current, generation, shared)
        _write_meta(generation, self._digest(text, sizes))

    def _digest(self, text: str, sizes: Sizes) -> bytes:
        return source_hash(text, self._build.defines(sizes))


def pinned_sizes(generation: Generation) -> Sizes:
    """The sizes of a generation's maps; the default for maps that it lacks in this layout."""
    found: dict[str, int] = {}
    for name, spec in SIZED_MAPS.items():
        if (generation.maps / name).exists():
            found.setdefault(str(spec.size), int(_info(generation, name).max_entries))
    return Sizes(**found)


def _is_whole(generation: Generation, programs: Set[str]) -> bool:
    """Whether all that belongs to a generation of this version is pinned, in its shape."""
    pinned = {path.name for path in generation.progs.iterdir()}
    sizes = pinned_sizes(generation)
    return programs <= pinned and _unchanged(generation, MAPS, sizes) == set(MAPS)


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
        with owned(libbpf.obj_get(old.maps / name)) as fd:
            libbpf.obj_pin(fd, new.maps / name)
    return frozenset(shared)


def _flow_sizes(generation: Generation, larger: Set[str]) -> Mapping[str, int]:
    """The sizes of tables that keep theirs, because their elements have this version's layout."""
    meta = read_meta(generation)
    if meta is None or meta.flows != FLOW_VERSION:
        return {}
    found = pinned_sizes(generation)
    names = {
        spec.size
        for name, spec in FLOW_MAPS.items()
        if isinstance(spec.size, str) and _shape(generation, name) == spec.shape(found)
    }
    maps = open_maps(generation.maps)
    if not _used(maps, _TUNNELED):
        # It is small until the node takes part in direct server return.
        names -= {"ct_dsr"}
    is_half_full = _used(maps, _ESTABLISHED) > found.conntrack // 2
    names -= {"conntrack"} if is_half_full else larger
    return {name: getattr(found, name) for name in names}


def _used(maps: MapSet, name: str) -> int:
    return used(maps[name]) if name in maps else 0


def _set_way(generation: Generation, way: SettingFlag) -> None:
    """Tell its programs where flows go while tables are replaced, unless its pins were removed."""
    settings = open_maps(generation.maps).get("lb_settings")
    if settings is None:
        return
    value = bytearray(settings.lookup(_ONLY_KEY) or bytes(settings.value_size))
    value[_FLAGS] = bytes(u32(_flags(generation) & ~_WAYS | way))
    settings.update(_ONLY_KEY, bytes(value))
    membarrier()


def _flags(generation: Generation) -> SettingFlag:
    maps = open_maps(generation.maps)
    value = maps["lb_settings"].lookup(_ONLY_KEY) if "lb_settings" in maps else None
    return SettingFlag(int.from_bytes((value or b"")[_FLAGS], byteorder))


def _forget_ended(old: Generation, new: Generation) -> None:
    """Delete the flows that have ended in `old` since they were copied."""
    before, after = open_maps(old.maps).get(_ESTABLISHED), open_maps(new.maps)[_ESTABLISHED]
    if before is None:
        return
    for chunk in after.chunks():
        after.delete_batch(
            [
                key
                for key, value in split(after, chunk.keys, chunk.values)
                if before.lookup(key) is None
                and LbConntrack.from_buffer_copy(value).hook != Hook.LB_HOOK_RESERVED
            ]
        )


def _catch_up(old: Generation, new: Generation, names: Set[str], since: int) -> None:
    """Copy what the old programs have since changed in copied flows, or deleted.

    Flows that have had a packet from the new programs `since` then belong to those.
    """
    for name in names & open_maps(old.maps).keys():
        before, after = dict(open_maps(old.maps)[name].items()), open_maps(new.maps)[name]
        for key, value in list(after.items()):
            entry, earlier = LbConntrack.from_buffer_copy(value), before.get(key)
            if earlier is None:
                if entry.last_seen < since:
                    after.delete(key)
                continue
            missed = LbConntrack.from_buffer_copy(earlier)
            state = entry.state, entry.other_state
            entry.state |= missed.state
            entry.other_state |= missed.other_state
            if state != (entry.state, entry.other_state):
                _replace(after, key, bytes(entry))


def _replace(table: BpfMap, key: bytes, value: bytes) -> None:
    """Unless it was deleted meanwhile."""
    try:
        table.update(key, value, exist=Exist.YES)
    except MapError as error:
        if error.errno != ENOENT:
            raise


def _make_sized_maps(generation: Generation, sizes: Sizes, shared: frozenset[str]) -> None:
    for name, spec in SIZED_MAPS.items():
        if name not in shared:
            made = libbpf.map_create(spec.kind, name, *spec.shape(sizes), spec.flags)
            with owned(made) as fd:
                libbpf.obj_pin(fd, generation.maps / name)


def _copy_maps(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy the maps that grew. MapError if something does not fit."""
    meta = read_meta(old)
    if meta is not None and meta.layout == LAYOUT_VERSION:
        _copy(open_maps(old.maps), open_maps(new.maps), set(SERVICE_MAPS) - shared)
    _copy_flows(old, new, shared)


def _copy_flows(old: Generation, new: Generation, shared: frozenset[str]) -> None:
    """Copy the flows that `new` does not have; called again when the last hook has moved."""
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
    with owned(libbpf.obj_get(generation.maps / name)) as fd:
        return libbpf.map_info(fd)


def _copy(old: MapSet, new: MapSet, names: set[str], *, missing_only: bool = False) -> None:
    for name in old.keys() & names:
        source, target = old[name], new[name]
        if source.value_size == target.value_size and not missing_only:
            _copy_packed(source, target, is_blank_at_first=MAPS[name].is_array)
            continue
        elements = ((key, _fitted(value, source, target)) for key, value in source.items())
        if missing_only:
            _add_missing(target, elements)
        else:
            target.update_batch(list(elements))


def _copy_packed(source: BpfMap, target: BpfMap, *, is_blank_at_first: bool) -> None:
    """In pieces: as single elements, a large map would take gigabytes."""
    for chunk in source.chunks():
        if not is_blank_at_first or chunk.values.count(0) < len(chunk.values):
            target.update_packed(chunk.keys, chunk.values)


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
    """What a generation was made from; None if unknown."""
    maps = open_maps(generation.maps)
    value = None
    # No program uses it, so it is not put back if somebody replaces it.
    with suppress(KeyError, MapError):
        value = maps["lb_meta"].lookup(_ONLY_KEY)
    if value is None or len(value) != ctypes.sizeof(LbMeta):
        return None
    meta = LbMeta.from_buffer_copy(value)
    return meta if meta.magic == META_MAGIC else None


def _write_meta(generation: Generation, source: bytes) -> None:
    """`source`: the hash of the compiled source."""
    meta = LbMeta(magic=META_MAGIC, layout=generation.layout, flows=FLOW_VERSION)
    meta.source[:] = source
    open_maps(generation.maps)["lb_meta"].update(_ONLY_KEY, bytes(meta))

# SPDX-License-Identifier: Apache-2.0
"""Generations of small programs and maps."""

import os
from collections.abc import Mapping
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.layout.capacity import (
    COUNT_MAPS,
    FLOW_MAPS,
    MAPS,
    SERVICE_MAPS,
    Sizes,
)
from ebpflb.dataplane.load import loader
from ebpflb.dataplane.load.loader import Build, Loader
from ebpflb.dataplane.load.pins import Generation, Pins
from tests.bpf.attach import tiny
from tests.bpf.harness.datapath import RING
from tests.bpf.harness.loading import SIZES

TAKEN_OVER = {**SERVICE_MAPS, **FLOW_MAPS, **COUNT_MAPS}
# The map that all programs use.
USED = "lb_slots"


def make_maps(text: str, defines: Mapping[str, str], programs: Path) -> None:
    """A compiler that makes missing maps and tiny programs."""
    directory = Path(defines["LB_PIN_MAPS"].strip('"'))
    sizes = Sizes(**{name: int(defines[f"LB_MAX_{name.upper()}"]) for name in Sizes.__slots__})
    for name, spec in MAPS.items():
        if not (directory / name).exists():
            fd = libbpf.map_create(spec.kind, name, *spec.shape(sizes), spec.flags)
            libbpf.obj_pin(fd, directory / name)
            os.close(fd)
    with owned(libbpf.obj_get(directory / USED)) as used:
        tiny.pin_programs(programs, used)


def refuse(text: str, defines: Mapping[str, str], programs: Path) -> None:
    """A compiler that must not be called."""
    raise AssertionError("compiled")


def load(root: Pins, sizes: Sizes = SIZES, compiler: loader.Compile = make_maps) -> Generation:
    """Begin a generation, or take over the current one."""
    return Loader(root, Build(has_set_retval=True), compiler=compiler).load(sizes)


def finish(root: Pins, generation: Generation) -> None:
    """All hooks have switched."""
    Loader(root, Build(has_set_retval=True), compiler=refuse).finish(generation)


def start(root: Pins, sizes: Sizes = SIZES, compiler: loader.Compile = make_maps) -> Generation:
    """A complete start."""
    generation = load(root, sizes, compiler)
    finish(root, generation)
    return generation


def identities(generation: Generation) -> dict[str, int]:
    """The kernel's ids of the maps."""
    found = {}
    for name in MAPS:
        fd = libbpf.obj_get(generation.maps / name)
        found[name] = libbpf.map_info(fd).id
        os.close(fd)
    return found


def shared(old: Generation, new: Generation) -> set[str]:
    """The maps in both."""
    before, after = identities(old), identities(new)
    return {name for name in MAPS if before[name] == after[name]}


def element(maps: MapSet, name: str, seed: int) -> tuple[bytes, bytes]:
    """A key and a value for a map."""
    key = (seed % maps[name].max_entries).to_bytes(maps[name].key_size, "little")
    return key, bytes([seed % 256]) * maps[name].value_size


def fill(generation: Generation, names: Mapping[str, object]) -> dict[str, dict[bytes, bytes]]:
    """Write elements into each map; returns them all."""
    maps = open_maps(generation.maps)
    for name in names.keys() - {RING}:
        for seed in (1, 2, 4):
            maps[name].update(*element(maps, name, seed))
    return contents(generation, names)


def contents(generation: Generation, names: Mapping[str, object]) -> dict[str, dict[bytes, bytes]]:
    """The elements that are not zero."""
    maps = open_maps(generation.maps)
    return {name: {k: v for k, v in maps[name].items() if any(v)} for name in names}


def sizes_of(sizes: Sizes) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in Sizes.__slots__}


LARGER_TABLE = Sizes(**{**sizes_of(SIZES), "conntrack": 2 * SIZES.conntrack})

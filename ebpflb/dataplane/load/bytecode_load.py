# SPDX-License-Identifier: Apache-2.0
"""From bytecode to maps and programs in the kernel, and to their pins."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import NAME_LENGTH, MapType
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.bytecode import Bytecode, Map, renumbered


def load_and_pin(bytecode: Bytecode, pins: Path, programs: Path, names: Iterable[str]) -> None:
    """Make maps, load programs and pin all of it, or leave no new pin behind.

    Raises OSError, LookupError for a program that is not there, ValueError for a map that is pinned
    already and has another shape.
    """
    with ExitStack() as opened:
        maps = open_maps(bytecode.maps, pins, opened)
        loaded = _load_all(bytecode, maps, names, opened)
        with ExitStack() as undone:
            pin_maps(bytecode.maps, maps, pins, undone)
            for name, descriptor in loaded.items():
                _pin(descriptor, programs / name, undone)
            undone.pop_all()


def open_maps(maps: Sequence[Map], pins: Path, opened: ExitStack) -> list[int]:
    """A descriptor of each: of the one that is pinned already, else of a new one.

    They are open as long as `opened` is. OSError, ValueError as in `load_and_pin`.
    """
    descriptors = []
    for each in maps:
        is_there = each.pinned and (pins / each.name).exists()
        descriptor = libbpf.obj_get(pins / each.name) if is_there else _made(each)
        opened.callback(os.close, descriptor)
        if is_there and _shape(descriptor) != each[2:]:
            raise ValueError(f"{pins / each.name} has another shape than {each}")
        descriptors.append(descriptor)
    return descriptors


def pin_maps(maps: Sequence[Map], descriptors: Sequence[int], pins: Path, undo: ExitStack) -> None:
    """Pin those that are to be and are not yet; `undo` takes away what this pins."""
    for each, descriptor in zip(maps, descriptors, strict=True):
        if each.pinned and not (pins / each.name).exists():
            _pin(descriptor, pins / each.name, undo)


def load(bytecode: Bytecode, maps: Sequence[int], name: str, opened: ExitStack) -> int:
    """A descriptor of the program of that name, open as long as `opened` is.

    `maps`: descriptors, as of `bytecode.maps`. OSError, LookupError as in `load_and_pin`.
    """
    program, code = PROGRAMS[name], renumbered(bytecode.programs[name], maps)
    descriptor = libbpf.prog_load(program.type, name, code, program.attach_type or 0)
    opened.callback(os.close, descriptor)
    return descriptor


def _load_all(
    bytecode: Bytecode, maps: Sequence[int], names: Iterable[str], opened: ExitStack
) -> Mapping[str, int]:
    """Descriptors by name. The kernel verifies one on each CPU, those first that take longest."""
    ordered = sorted(names, key=lambda name: len(bytecode.programs[name]), reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        loaded = executor.map(lambda name: load(bytecode, maps, name, opened), ordered)
        return dict(zip(ordered, loaded, strict=True))


def _made(wanted: Map) -> int:
    """New; the kernel takes no longer names."""
    name, _, kind, *sizes = wanted
    return libbpf.map_create(MapType(kind), name[: NAME_LENGTH - 1], *sizes)


def _shape(descriptor: int) -> tuple[int, ...]:
    found = libbpf.map_info(descriptor)
    sizes = (found.key_size, found.value_size, found.max_entries, found.map_flags)
    return found.type, *sizes


def _pin(descriptor: int, path: Path, undo: ExitStack) -> None:
    libbpf.obj_pin(descriptor, path)
    undo.callback(path.unlink)

# SPDX-License-Identifier: Apache-2.0
"""Compiled objects: maps and programs that any process can load without bcc.

Extracted from a bcc module, packed for the cache, loaded and pinned with bpf(2).
"""

import ctypes
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from sys import byteorder
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.uapi import NAME_LENGTH, MapType
from ebpflb.dataplane.layout.capacity import SIZED_MAPS
from ebpflb.dataplane.layout.programs import PROGRAMS

_INSTRUCTION_SIZE = 8
_LOAD_WIDE = 0x18
_VALUE_AT = _VALUE_SIZE = 4  # behind the operation, the registers and the offset
_SHAPE = ("type", "key_size", "leaf_size", "max_entries", "flags")


class Map(NamedTuple):
    """A map as bpf(2) takes it; sizes in bytes, for a per-CPU value that of one CPU.

    `pinned`: the file name of its pin, if it has one.
    """

    name: str
    pinned: bool
    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class Bytecode(NamedTuple):
    """Compiled objects. References to maps in programs are indices into `maps`."""

    maps: Sequence[Map]
    programs: Mapping[str, bytes]


def taken_apart(module: Any, library: Any, is_pinned: Callable[[int, str], bool]) -> Bytecode:
    """The contents of a bcc module; `library` is bcc's libbcc.

    `is_pinned` tells from a map's descriptor and name whether the module has pinned it. The shapes
    of maps are those in the text, whatever was pinned before. LookupError for instructions that
    refer to anything but the module's maps.
    """
    maps: list[Map] = []
    numbers: dict[int, int] = {}
    for descriptor, made in _tables(module, library, is_pinned):
        numbers[descriptor] = len(maps)
        maps.append(made)
    count = library.bpf_num_functions(module.module)
    names = [library.bpf_function_name(module.module, number) for number in range(count)]
    programs = {name.decode(): renumbered(module.dump_func(name), numbers) for name in names}
    return Bytecode(maps, programs)


def renumbered(code: bytes, numbers: Mapping[int, int] | Sequence[int]) -> bytes:
    """The instructions with all references to maps replaced; LookupError if a number is missing."""
    changed = bytearray(code)
    for at in range(0, len(code), _INSTRUCTION_SIZE):
        is_plain_number = code[at + 1] >> 4 == 0
        if code[at] == _LOAD_WIDE and not is_plain_number:
            value = slice(at + _VALUE_AT, at + _INSTRUCTION_SIZE)
            number = int.from_bytes(code[value], byteorder)
            changed[value] = numbers[number].to_bytes(_VALUE_SIZE, byteorder)
    return bytes(changed)


def packed(bytecode: Bytecode) -> bytes:
    """Serialize for `unpacked`."""
    sizes = {name: len(code) for name, code in bytecode.programs.items()}
    head = json.dumps([bytecode.maps, sizes]).encode()
    return zlib.compress(head + b"\n" + b"".join(bytecode.programs.values()))


def unpacked(content: bytes) -> Bytecode:
    """The reverse of `packed`."""
    head, _, code = zlib.decompress(content).partition(b"\n")
    maps, sizes = json.loads(head)
    programs, at = {}, 0
    for name, size in sizes.items():
        programs[name] = code[at : at + size]
        at += size
    return Bytecode([Map(*each) for each in maps], programs)


def is_pinned_as(descriptor: int, path: Path) -> bool:
    """Whether exactly this map is pinned there."""
    if not path.exists():
        return False
    with owned(libbpf.obj_get(path)) as there:
        return bool(libbpf.map_info(there).id == libbpf.map_info(descriptor).id)


def _tables(
    module: Any, library: Any, is_pinned: Callable[[int, str], bool]
) -> Iterator[tuple[int, Map]]:
    """Each map with its descriptor, by functions of libbcc that bcc's Python does not declare."""

    def call(name: str, *number: int, result: Any = ctypes.c_int) -> Any:
        function = library[name]
        function.restype = result
        return function(ctypes.c_void_p(module.module), *map(ctypes.c_size_t, number))

    for number in range(call("bpf_num_tables", result=ctypes.c_size_t)):
        name = call("bpf_table_name", number, result=ctypes.c_char_p).decode()
        descriptor = call("bpf_table_fd_id", number)
        shape = [call(f"bpf_table_{fact}_id", number, result=ctypes.c_size_t) for fact in _SHAPE]
        yield descriptor, Map(name, is_pinned(descriptor, name), *shape)


def load_and_pin(
    bytecode: Bytecode,
    pins: Path,
    programs: Path,
    names: Iterable[str],
    *,
    has_frags: bool = False,
) -> None:
    """Create maps, load programs and pin them all, or leave no new pin behind.

    `has_frags`: the kernel has Feature.XDP_FRAGS.

    Raises OSError, LookupError for an unknown program, ValueError for a map that is already pinned
    with another shape.
    """
    with ExitStack() as opened:
        maps = open_maps(bytecode.maps, pins, opened)
        loaded = _load_all(bytecode, maps, names, opened, has_frags=has_frags)
        with ExitStack() as undone:
            pin_maps(bytecode.maps, maps, pins, undone)
            for name, descriptor in loaded.items():
                _pin(descriptor, programs / name, undone)
            undone.pop_all()


def open_maps(maps: Sequence[Map], pins: Path, opened: ExitStack) -> list[int]:
    """A descriptor of each map: of the pinned one if there is one, else of a new one.

    They stay open as long as `opened`. OSError, ValueError as in `load_and_pin`.
    """
    descriptors = []
    for each in maps:
        is_there = each.pinned and (pins / each.name).exists()
        descriptor = libbpf.obj_get(pins / each.name) if is_there else _create(each)
        opened.callback(os.close, descriptor)
        if is_there and not _fits(_shape(descriptor), each):
            raise ValueError(f"{pins / each.name} has another shape than {each}")
        descriptors.append(descriptor)
    return descriptors


def pin_maps(maps: Sequence[Map], descriptors: Sequence[int], pins: Path, undo: ExitStack) -> None:
    """Pin those that should be pinned and are not yet; `undo` removes the new pins."""
    for each, descriptor in zip(maps, descriptors, strict=True):
        if each.pinned and not (pins / each.name).exists():
            _pin(descriptor, pins / each.name, undo)


def load(
    bytecode: Bytecode,
    maps: Sequence[int],
    name: str,
    opened: ExitStack,
    *,
    has_frags: bool = False,
) -> int:
    """A descriptor of the program with that name, open as long as `opened`.

    `maps`: descriptors, in the order of `bytecode.maps`. OSError, LookupError as in `load_and_pin`.
    """
    descriptor = load_code(name, renumbered(bytecode.programs[name], maps), has_frags=has_frags)
    opened.callback(os.close, descriptor)
    return descriptor


def load_code(name: str, code: bytes, *, has_frags: bool) -> int:
    """Load a program; `code` has descriptors of maps. Returns its descriptor. OSError."""
    program = PROGRAMS[name]
    flags = program.flags if has_frags else 0
    return libbpf.prog_load(program.type, name, code, program.attach_type or 0, flags)


def _load_all(
    bytecode: Bytecode,
    maps: Sequence[int],
    names: Iterable[str],
    opened: ExitStack,
    *,
    has_frags: bool,
) -> Mapping[str, int]:
    """Descriptors by name. One program per CPU is verified at a time, the longest first."""
    ordered = sorted(names, key=lambda name: len(bytecode.programs[name]), reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        loaded = executor.map(
            lambda name: load(bytecode, maps, name, opened, has_frags=has_frags), ordered
        )
        return dict(zip(ordered, loaded, strict=True))


def _create(wanted: Map) -> int:
    """Create a map; the kernel limits the length of its name."""
    name, _, kind, *sizes = wanted
    return libbpf.map_create(MapType(kind), name[: NAME_LENGTH - 1], *sizes)


def _shape(descriptor: int) -> Map:
    found = libbpf.map_info(descriptor)
    sizes = (found.key_size, found.value_size, found.max_entries, found.map_flags)
    return Map(found.name.decode(), True, found.type, *sizes)


def _fits(there: Map, wanted: Map) -> bool:
    """Whether an existing map can be used; the loader chooses its size."""
    if wanted.name in SIZED_MAPS:
        there = there._replace(max_entries=wanted.max_entries)
    return there[2:] == wanted[2:]


def _pin(descriptor: int, path: Path, undo: ExitStack) -> None:
    libbpf.obj_pin(descriptor, path)
    undo.callback(path.unlink)

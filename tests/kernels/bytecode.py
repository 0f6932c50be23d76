# SPDX-License-Identifier: Apache-2.0
"""Compiled programs as JSON, to be loaded by another kernel than the one that compiled them.

`python -m tests.kernels.bytecode` compiles what stdin asks for and writes it to stdout. bcc makes
the maps here too; they go when this process ends.
"""

import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ebpflb.dataplane import libbpf, libc
from ebpflb.dataplane.uapi import MapInfo

INSTRUCTION = struct.Struct("=BBhi")  # operation, registers, offset, value
LOAD_WIDE, MAP_FD = 0x18, 1

_PINS = re.compile(r'-DLB_PIN_MAPS="(.*)"')


class Map(TypedDict):
    """A map, as bpf(2) takes it. `pinned`: its name is a file in the directory of pins."""

    name: str
    pinned: bool
    create: Sequence[int]


class Bytecode(TypedDict):
    """What a text became. Where a program names a map, the value is an index into `maps`."""

    maps: Sequence[Map]
    programs: Mapping[str, str]


def pin_directory(cflags: Sequence[str]) -> Path | None:
    """Where the flags say that maps are pinned."""
    found = [match[1] for flag in cflags if (match := _PINS.fullmatch(flag))]
    return Path(found[0]) if found else None


def without_pins(cflags: Sequence[str]) -> list[str]:
    """The flags that change what comes out."""
    return [flag for flag in cflags if not _PINS.fullmatch(flag)]


def _compile(text: str, cflags: Sequence[str]) -> Bytecode:
    from bcc import BPF

    with tempfile.TemporaryDirectory() as folder:
        mounted = Path(folder)
        libc.mount_bpffs(mounted, "ebpflb-kernels")
        try:
            pins = mounted / "maps"
            pins.mkdir()
            flags = [*without_pins(cflags), f'-DLB_PIN_MAPS="{pins}"']
            module = BPF(text=text, cflags=flags)
            return _taken_apart(module, pins)
        finally:
            libc.unmount(mounted)


def _taken_apart(module: Any, pins: Path) -> Bytecode:
    from bcc.libbcc import lib

    count = lib.bpf_num_functions(module.module)
    names = [lib.bpf_function_name(module.module, number) for number in range(count)]
    maps = _Maps(pins)
    programs = {name.decode(): _relative(module.dump_func(name), maps) for name in names}
    return Bytecode(maps=maps.found, programs=programs)


def _relative(code: bytes, maps: "_Maps") -> str:
    """The instructions in hexadecimal."""
    words = []
    for operation, registers, offset, value in INSTRUCTION.iter_unpack(code):
        names_map = operation == LOAD_WIDE and registers >> 4 == MAP_FD
        number = maps.number(value) if names_map else value
        words.append(INSTRUCTION.pack(operation, registers, offset, number))
    return b"".join(words).hex()


class _Maps:
    """All that are pinned, used or not, and those that programs use besides."""

    def __init__(self, pins: Path) -> None:
        self.found: list[Map] = []
        self._numbers: dict[int, int] = {}
        for path in sorted(pins.iterdir()):
            fd = libbpf.obj_get(path)
            self._add(libbpf.map_info(fd), path.name, pinned=True)
            os.close(fd)

    def number(self, fd: int) -> int:
        """The index in `found` of the map that a program names."""
        found = libbpf.map_info(fd)
        if found.id not in self._numbers:
            self._add(found, found.name.decode(), pinned=False)
        return self._numbers[found.id]

    def _add(self, found: MapInfo, name: str, *, pinned: bool) -> None:
        sizes = (found.key_size, found.value_size, found.max_entries, found.map_flags)
        self._numbers[found.id] = len(self.found)
        self.found.append(Map(name=name, pinned=pinned, create=(found.type, *sizes)))


if __name__ == "__main__":
    json.dump(_compile(**json.load(sys.stdin)), sys.stdout)

# SPDX-License-Identifier: Apache-2.0
"""A compiled object of another project: its programs as XDP programs, its maps to fill.

Nothing is pinned, whatever the object says; maps and programs end with this process.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.kernel.uapi import AttachType, ProgType
from tests.bench.harness.options import BenchError


class ObjectFile:
    """programs: descriptors by the name of the section. maps: by name."""

    def __init__(self, path: Path, entries: Mapping[str, int] = MappingProxyType({})) -> None:
        """Load it. `entries`: how many elements a map has, where the object says otherwise.

        BenchError when libbpf or the kernel refuses it.
        """
        self._libbpf = ctypes.CDLL("libbpf.so.1")
        opened = self._pointer("bpf_object__open_file", os.fsencode(path), None)
        if not opened:
            raise BenchError(f"{path.name} is not an object that libbpf can open")
        programs = list(self._each("bpf_object__next_program", opened))
        maps = {
            self._text("bpf_map__name", each): each
            for each in self._each("bpf_object__next_map", opened)
        }
        for program in programs:
            self._number("bpf_program__set_type", program, ProgType.XDP)
            self._number("bpf_program__set_expected_attach_type", program, AttachType.XDP)
        for each in maps.values():
            self._number("bpf_map__set_pin_path", each, None)
        for name, size in entries.items():
            self._number("bpf_map__set_max_entries", maps[name], size)
        if self._number("bpf_object__load", opened):
            raise BenchError(f"the kernel refuses {path.name}")
        self.programs = {
            self._text("bpf_program__section_name", each): self._number("bpf_program__fd", each)
            for each in programs
        }
        self.maps = {
            name: KernelMap(os.dup(self._number("bpf_map__fd", each)), name)
            for name, each in maps.items()
        }

    def _each(self, following: str, opened: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        current = self._pointer(following, opened, None)
        while current:
            yield current
            current = self._pointer(following, opened, current)

    def _pointer(self, name: str, *args: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._result(name, ctypes.c_void_p, *args))

    def _text(self, name: str, pointer: ctypes.c_void_p) -> str:
        return bytes(self._result(name, ctypes.c_char_p, pointer)).decode()

    def _number(self, name: str, pointer: ctypes.c_void_p, *args: Any) -> int:
        return int(self._result(name, ctypes.c_int, pointer, *args))

    def _result(self, name: str, kind: Any, *args: Any) -> Any:
        function = getattr(self._libbpf, name)
        function.restype = kind
        return function(*args)

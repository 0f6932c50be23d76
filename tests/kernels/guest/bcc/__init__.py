# SPDX-License-Identifier: Apache-2.0
"""In place of bcc where clang would take minutes: the machine outside compiles, this one loads.

What the text became is the same bytecode; who verifies it is the kernel here.
"""

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ebpflb.dataplane import libbpf
from ebpflb.dataplane.uapi import MapType
from tests.kernels.bytecode import (
    INSTRUCTION,
    LOAD_WIDE,
    MAP_FD,
    Bytecode,
    Map,
    pin_directory,
    without_pins,
)
from tests.kernels.compiler import FAILED, REQUEST, RESULT
from tests.kernels.machine import RESULTS

_NO_ATTACH_TYPE = -1
_LICENSE = b"Dual BSD/GPL"
_LOG_SIZE = (1 << 24) - 1  # the most that Linux 5.10 takes
_SHORTEST_SLEEP, _LONGEST_SLEEP = 0.05, 1.0


class _Options(ctypes.Structure):
    """struct bpf_prog_load_opts of libbpf 1."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_uint32),
        ("numbers", ctypes.c_uint32 * 7),
        ("pointers_and_counts", ctypes.c_uint64 * 5),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
    ]


class Function:
    """A loaded program."""

    def __init__(self, fd: int) -> None:
        self.fd = fd


class BPF:
    """As bcc's, as far as the compiler of the agent uses it."""

    def __init__(self, text: str, cflags: Sequence[str]) -> None:
        """Have the text compiled, and make its maps or take those that are pinned."""
        self._bytecode = _compiled(text, cflags)
        pins = pin_directory(cflags)
        self._maps = [_opened(made, pins) for made in self._bytecode["maps"]]

    def load_func(self, name: bytes, prog_type: int, device: None, attach_type: int) -> Function:
        """Load a program. What the verifier says goes to stderr."""
        code = b"".join(
            INSTRUCTION.pack(*self._absolute(*words))
            for words in INSTRUCTION.iter_unpack(
                bytes.fromhex(self._bytecode["programs"][name.decode()])
            )
        )
        attach_type = 0 if attach_type == _NO_ATTACH_TYPE else attach_type
        return Function(_load(name, prog_type, code, attach_type))

    def _absolute(
        self, operation: int, registers: int, offset: int, value: int
    ) -> tuple[int, int, int, int]:
        names_map = operation == LOAD_WIDE and registers >> 4 == MAP_FD
        return operation, registers, offset, self._maps[value] if names_map else value


def _compiled(text: str, cflags: Sequence[str]) -> Bytecode:
    request = json.dumps({"text": text, "cflags": without_pins(cflags)})
    name = hashlib.sha256(request.encode()).hexdigest()
    result, failed = ((RESULTS / name).with_suffix(suffix) for suffix in (RESULT, FAILED))
    asked = RESULTS / f"{name}.{os.getpid()}"
    asked.write_text(request)
    asked.rename((RESULTS / name).with_suffix(REQUEST))
    seconds = _SHORTEST_SLEEP
    while not result.exists():
        if failed.exists():
            print(failed.read_text(), file=sys.stderr)
            raise ValueError("the machine outside cannot compile it")
        time.sleep(seconds)
        seconds = min(2 * seconds, _LONGEST_SLEEP)
    bytecode: Bytecode = json.loads(result.read_text())
    return bytecode


def _opened(wanted: Map, pins: Path | None) -> int:
    path = pins / wanted["name"] if pins and wanted["pinned"] else None
    if path and path.exists():
        return libbpf.obj_get(path)
    kind, *sizes = wanted["create"]
    fd = libbpf.map_create(MapType(kind), wanted["name"][:15], *sizes)
    if path:
        libbpf.obj_pin(fd, path)
    return fd


def _load(name: bytes, prog_type: int, code: bytes, attach_type: int) -> int:
    fd = _try(name, prog_type, code, _Options(expected_attach_type=attach_type))
    if fd < 0:
        log = ctypes.create_string_buffer(_LOG_SIZE)
        told = _Options(expected_attach_type=attach_type, log_level=1, log_size=_LOG_SIZE)
        told.log_buf = ctypes.addressof(log)
        _try(name, prog_type, code, told)
        print(log.value.decode(errors="replace"), file=sys.stderr)
        raise OSError(-fd, f"{name.decode()}: {os.strerror(-fd)}")
    return fd


def _try(name: bytes, prog_type: int, code: bytes, options: _Options) -> int:
    options.sz = ctypes.sizeof(options)
    count = ctypes.c_size_t(len(code) // INSTRUCTION.size)
    arguments = (prog_type, name, _LICENSE, code, count, ctypes.byref(options))
    return int(ctypes.CDLL("libbpf.so.1").bpf_prog_load(*arguments))

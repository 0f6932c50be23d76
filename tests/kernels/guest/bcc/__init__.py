# SPDX-License-Identifier: Apache-2.0
"""Replaces bcc where clang would take minutes: the machine outside compiles, this one loads.

The bytecode is the same; the kernel here verifies it.
"""

import ctypes
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ebpflb.dataplane.load.bytecode import Bytecode, load, open_maps, pin_maps, renumbered, unpacked
from tests.kernels.compiler import FAILED, REQUEST, RESULT
from tests.kernels.machine import RESULTS

_PINS = re.compile(r'-DLB_PIN_MAPS="(.*)"')
_INSTRUCTION_SIZE = 8
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
    """Like bcc's, as far as the agent's compiler uses it. It closes nothing that it opens."""

    def __init__(self, text: str, cflags: Sequence[str]) -> None:
        """Have the text compiled, and create its maps or use the pinned ones."""
        pins, others = _parted(cflags)
        self._opened = ExitStack()
        self._bytecode = _compiled(text, others)
        self._maps = open_maps(self._bytecode.maps, pins, self._opened)
        pin_maps(self._bytecode.maps, self._maps, pins, ExitStack())

    def load_func(self, name: bytes, prog_type: int, device: None, attach_type: int) -> Function:
        """Load a program. The verifier's log goes to stderr."""
        try:
            return Function(load(self._bytecode, self._maps, name.decode(), self._opened))
        except OSError:
            code = renumbered(self._bytecode.programs[name.decode()], self._maps)
            _tell(name, prog_type, code, max(attach_type, 0))
            raise

    def dump_func(self, name: bytes) -> bytes:
        """The instructions of a program, with the descriptors of its maps."""
        return renumbered(self._bytecode.programs[name.decode()], self._maps)


def _parted(cflags: Sequence[str]) -> tuple[Path, list[str]]:
    """Where the flags say that maps are pinned, and the flags that affect the result."""
    (pins,) = [match[1] for flag in cflags if (match := _PINS.fullmatch(flag))]
    return Path(pins), [flag for flag in cflags if not _PINS.fullmatch(flag)]


def _compiled(text: str, cflags: Sequence[str]) -> Bytecode:
    request = json.dumps({"text": text, "cflags": cflags})
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
    return unpacked(result.read_bytes())


def _tell(name: bytes, prog_type: int, code: bytes, attach_type: int) -> None:
    """Load it once more, for the verifier's explanation."""
    log = ctypes.create_string_buffer(_LOG_SIZE)
    options = _Options(expected_attach_type=attach_type, log_level=1, log_size=_LOG_SIZE)
    options.sz, options.log_buf = ctypes.sizeof(options), ctypes.addressof(log)
    count = ctypes.c_size_t(len(code) // _INSTRUCTION_SIZE)
    arguments = (prog_type, name, _LICENSE, code, count, ctypes.byref(options))
    ctypes.CDLL("libbpf.so.1").bpf_prog_load(*arguments)
    print(log.value.decode(errors="replace"), file=sys.stderr)

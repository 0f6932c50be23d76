# SPDX-License-Identifier: Apache-2.0
"""No program has an instruction that the oldest supported kernel lacks."""

import ctypes
import struct

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import ProgInfo
from ebpflb.dataplane.layout.programs import PROGRAMS
from tests.bpf.harness.loading import Loaded

# linux/bpf.h: the class STX with the mode ATOMIC, which Linux 5.10 knows as XADD alone.
_CLASS_AND_MODE, _ATOMIC = 0xE7, 0xC3
_INSTRUCTION = struct.Struct("=BxhI")


def instructions(program: int) -> list[tuple[int, int]]:
    """The code and the constant of each."""
    size = libbpf.prog_info(program).xlated_prog_len
    text = (ctypes.c_char * size)()
    asked = ProgInfo(xlated_prog_len=size, xlated_prog_insns=ctypes.addressof(text))
    length = ctypes.c_uint32(ctypes.sizeof(asked))
    libbpf.call("bpf_obj_get_info_by_fd", program, ctypes.byref(asked), ctypes.byref(length))
    return [(code, constant) for code, _, constant in _INSTRUCTION.iter_unpack(text.raw)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_only_atomic_operation_is_addition(programs: Loaded, name: str):
    """Before Linux 5.12 there was no other one, and none with a result."""
    found = instructions(programs.programs[name])
    assert found
    constants = {each for code, each in found if code & _CLASS_AND_MODE == _ATOMIC}
    assert constants <= {0}

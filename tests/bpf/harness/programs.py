# SPDX-License-Identifier: Apache-2.0
"""Program operations that only tests need: run one on a packet, attach one without a link."""

import ctypes
from typing import NamedTuple

from ebpflb.dataplane.kernel.libbpf import call
from ebpflb.dataplane.kernel.uapi import AttachFlag, AttachType

# BPF_F_TEST_XDP_LIVE_FRAMES
_LIVE_FRAMES = 1 << 1


class _RunProg(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_char_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


class ProgRun(NamedTuple):
    """Result of a program's test run; duration in nanoseconds per repetition."""

    retval: int
    packet: bytes
    ctx: bytes
    duration: int


def prog_test_run(
    prog: int, packet: bytes, *, ctx: bytes = b"", repeat: int = 1, room: int = 256
) -> ProgRun:
    """Run a tc or XDP program `repeat` times on a packet; `room`: bytes that it may grow by."""
    changed = ctypes.create_string_buffer(len(packet) + room)
    context = ctypes.create_string_buffer(len(ctx) or 1)
    run = _RunProg(
        sz=ctypes.sizeof(_RunProg),
        data_in=packet,
        data_size_in=len(packet),
        data_out=ctypes.addressof(changed),
        data_size_out=len(changed),
        repeat=repeat,
    )
    if ctx:
        run.ctx_in, run.ctx_size_in = ctx, len(ctx)
        run.ctx_out, run.ctx_size_out = ctypes.addressof(context), len(ctx)
    call("bpf_prog_test_run_opts", prog, ctypes.byref(run))
    ctx_out = context.raw[: run.ctx_size_out]
    return ProgRun(run.retval, changed.raw[: run.data_size_out], ctx_out, run.duration)


def send_live_frames(prog: int, packet: bytes, repeat: int, *, batch: int = 64) -> None:
    """Run an XDP program on frames that really go to its target. EINVAL before Linux 5.18."""
    context = bytes(4) + len(packet).to_bytes(4, "little") + bytes(16)
    run = _RunProg(
        sz=ctypes.sizeof(_RunProg),
        data_in=packet,
        data_size_in=len(packet),
        ctx_in=context,
        ctx_size_in=len(context),
        repeat=repeat,
        flags=_LIVE_FRAMES,
        batch_size=batch,
    )
    call("bpf_prog_test_run_opts", prog, ctypes.byref(run))


def prog_attach(prog: int, target: int, attach_type: AttachType, flags: AttachFlag) -> None:
    """Attach without a link, as other products may; `target` is a cgroup's descriptor."""
    call("bpf_prog_attach", prog, target, attach_type, flags)


def prog_detach(prog: int, target: int, attach_type: AttachType) -> None:
    """Undo `prog_attach`; ENOENT when the program is not attached there."""
    call("bpf_prog_detach2", prog, target, attach_type)

# SPDX-License-Identifier: Apache-2.0
"""The few system calls that Python 3.11 lacks: statfs, mount, umount, setns, membarrier, and those
with which a thread gives up rights.

Also getsockopt for options whose buffer is an input, too. All but membarrier raise OSError with
the kernel's errno, and the path if there is one.
"""

import ctypes
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BPF_FS_MAGIC = 0xCAFE4A11
CGROUP2_SUPER_MAGIC = 0x63677270

CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
BPFFS_FLAGS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_STATFS_ROOM = 256
# membarrier(2): its numbers, its commands, and the longest run time of a program in seconds.
_MEMBARRIER = {"x86_64": 324}
_GENERIC_MEMBARRIER = 283
_GLOBAL, _GLOBAL_EXPEDITED = 1, 2
_LONGEST_RUN = 0.1
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def owned(fd: int) -> Iterator[int]:
    """The descriptor; closed at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def filesystem_type(path: Path) -> int:
    """The magic number of the file system that holds `path`."""
    buffer = ctypes.create_string_buffer(_STATFS_ROOM)
    _check(_libc.statfs(os.fsencode(path), buffer), path)
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def mount_bpffs(path: Path, source: str) -> None:
    """Mount a bpffs that only root may enter; `source` is the first field in /proc/mounts."""
    flags = ctypes.c_ulong(BPFFS_FLAGS)
    _check(_libc.mount(source.encode(), os.fsencode(path), b"bpf", flags, b"mode=700"), path)


def unmount(path: Path) -> None:
    """Unmount what is mounted at `path`; EBUSY while it is in use."""
    _check(_libc.umount2(os.fsencode(path), 0), path)


def enter_network_namespace(fd: int) -> None:
    """Move only the calling thread to the network namespace of `fd`."""
    _check(_libc.setns(fd, CLONE_NEWNET))


def ask_socket(fd: int, level: int, option: int, question: bytes) -> bytes:
    """getsockopt(2) with `question` as the initial contents of the buffer; returns the answer."""
    buffer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    _check(_libc.getsockopt(fd, level, option, buffer, ctypes.byref(length)))
    return buffer.raw[: length.value]


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends, from now on."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)))


def forbid_new_privileges() -> None:
    """No program that this thread or its children execute gets more rights than they have."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))


def capget(header: bytes, room: int) -> bytes:
    """The capabilities of the calling thread, in `room` bytes."""
    buffer = ctypes.create_string_buffer(room)
    _check(_libc.capget(ctypes.create_string_buffer(header, len(header)), buffer))
    return buffer.raw


def capset(header: bytes, sets: bytes) -> None:
    """Set the capabilities of only the calling thread."""
    _check(_libc.capset(ctypes.create_string_buffer(header, len(header)), sets))


def system_call(call: int, *arguments: int | bytes) -> int:
    """What a system call returns that the C library does not have; int: all 64 bits."""
    given = (ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments)
    result = int(_libc.syscall(ctypes.c_long(call), *given))
    _check(result < 0)
    return result


def membarrier() -> None:
    """Return after an RCU grace period (about 10 ms): every program that was running has ended.

    If the kernel refuses (nohz_full), waits for 0.1 s instead, far longer than a program may run.
    """
    if not _try_membarrier(_GLOBAL):
        time.sleep(_LONGEST_RUN)


def order_writes() -> None:
    """Make all CPUs see this thread's earlier writes to maps before any later ones.

    A system call alone does not order writes to arrays, and arm64 may reorder them. membarrier
    begins with a memory barrier (kernel/sched/membarrier.c), and so does yielding the CPU, which
    is the fallback if the kernel refuses.
    """
    if not _try_membarrier(_GLOBAL_EXPEDITED):
        os.sched_yield()


def _try_membarrier(command: int) -> bool:
    number = _MEMBARRIER.get(platform.machine(), _GENERIC_MEMBARRIER)
    return bool(_libc.syscall(number, command, 0, 0) == 0)


def _check(result: int, path: Path | None = None) -> None:
    if result:
        code = ctypes.get_errno()
        names = [str(path)] if path else []
        raise OSError(code, os.strerror(code), *names)

# SPDX-License-Identifier: Apache-2.0
"""The few system calls that Python 3.11 lacks: statfs, mount, umount, setns and membarrier.

Also getsockopt for options whose buffer is an input, too. All but membarrier raise OSError with
the kernel's errno, and the path if there is one.
"""

import ctypes
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BPF_FS_MAGIC = 0xCAFE4A11
CGROUP2_SUPER_MAGIC = 0x63677270

_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_STATFS_ROOM = 256
# membarrier(2): its numbers, its commands, and the longest run time of a program in seconds.
_MEMBARRIER = {"x86_64": 324}
_GENERIC_MEMBARRIER = 283
_GLOBAL, _GLOBAL_EXPEDITED = 1, 2
_LONGEST_RUN = 0.1

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
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _check(_libc.mount(source.encode(), os.fsencode(path), b"bpf", flags, b"mode=700"), path)


def unmount(path: Path) -> None:
    """Unmount what is mounted at `path`; EBUSY while it is in use."""
    _check(_libc.umount2(os.fsencode(path), 0), path)


def enter_network_namespace(fd: int) -> None:
    """Move only the calling thread to the network namespace of `fd`."""
    _check(_libc.setns(fd, _CLONE_NEWNET))


def ask_socket(fd: int, level: int, option: int, question: bytes) -> bytes:
    """getsockopt(2) with `question` as the initial contents of the buffer; returns the answer."""
    buffer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    _check(_libc.getsockopt(fd, level, option, buffer, ctypes.byref(length)))
    return buffer.raw[: length.value]


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

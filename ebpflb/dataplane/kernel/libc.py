# SPDX-License-Identifier: Apache-2.0
"""The few calls of the C library that Python 3.11 lacks: statfs, mount, umount, setns.

All raise OSError with the kernel's errno and the path.
"""

import ctypes
import os
from pathlib import Path

BPF_FS_MAGIC = 0xCAFE4A11
CGROUP2_SUPER_MAGIC = 0x63677270

_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_STATFS_ROOM = 256

_libc = ctypes.CDLL(None, use_errno=True)


def filesystem_type(path: Path) -> int:
    """The magic number of the file system that holds `path`."""
    buffer = ctypes.create_string_buffer(_STATFS_ROOM)
    _check(_libc.statfs(os.fsencode(path), buffer), path)
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def mount_bpffs(path: Path, source: str) -> None:
    """Mount a bpffs that only root may enter; `source` is the first word in /proc/mounts."""
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _check(_libc.mount(source.encode(), os.fsencode(path), b"bpf", flags, b"mode=700"), path)


def unmount(path: Path) -> None:
    """Unmount what is mounted at `path`; EBUSY while somebody uses it."""
    _check(_libc.umount2(os.fsencode(path), 0), path)


def enter_network_namespace(fd: int) -> None:
    """Move the calling thread, and only it, to the network namespace that `fd` names."""
    _check(_libc.setns(fd, _CLONE_NEWNET), None)


def _check(result: int, path: Path | None) -> None:
    if result == 0:
        return
    code = ctypes.get_errno()
    if path is None:
        raise OSError(code, os.strerror(code))
    raise OSError(code, os.strerror(code), str(path))

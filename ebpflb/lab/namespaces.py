# SPDX-License-Identifier: Apache-2.0
"""Network namespaces and the mounts that name them. Only the calling thread ever moves.

They are kept below /run/netns as ip(8) and container runtimes keep them, so that `ip netns` and the
agent see them. Enter them by setns(2) only: `ip netns exec` mounts a /sys of its own, which hides
cgroups and bpffs.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ebpflb.dataplane.kernel import libc

DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 0x100000
_MNT_DETACH = 2
_SYSCTLS = Path("/proc/sys/net")
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def path_of(name: str) -> Path:
    """Where a namespace of that name is or would be."""
    return DIRECTORY / name


def create(name: str) -> int:
    """Make a namespace and return its inode number. FileExistsError when the name is taken."""
    _prepare_directory()
    path = path_of(name)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
    try:
        with _returning():
            _check(_libc.unshare(_CLONE_NEWNET), "unshare")
            _mount(_OWN, path, _MS_BIND)
        return path.stat().st_ino
    except OSError:
        path.unlink()
        raise


def delete(name: str, inode: int | None) -> None:
    """Remove a namespace's name; it ends with its last process. Nothing happens if there is none.

    inode: leave what is there alone unless it is this namespace. None: whatever has the name.
    """
    path = path_of(name)
    with contextlib.suppress(FileNotFoundError):
        if inode is not None and path.stat().st_ino != inode:
            return
        detach(path)
        path.unlink()


@contextlib.contextmanager
def entered(path: Path) -> Iterator[None]:
    """Put the calling thread into a namespace for a while; sockets made there stay there."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _returning():
            libc.enter_network_namespace(fd)
            yield
    finally:
        os.close(fd)


def write_sysctls(settings: Mapping[str, str]) -> None:
    """Set what lies below /proc/sys/net in the calling thread's namespace."""
    for name, value in settings.items():
        (_SYSCTLS / name).write_text(value)


def entry_in_child(namespace: Path, cgroup: Path) -> Callable[[], None]:
    """What a child calls between fork and exec; system calls only, since threads may exist."""

    def enter() -> None:
        fd = os.open(cgroup / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        libc.enter_network_namespace(fd)

    return enter


def detach(path: Path) -> None:
    """Take the topmost mount off `path`, also while it is in use; nothing if there is none."""
    result = _libc.umount2(os.fsencode(path), _MNT_DETACH)
    if result and ctypes.get_errno() not in {errno.EINVAL, errno.ENOENT}:
        _check(result, f"umount {path}")


@contextlib.contextmanager
def _returning() -> Iterator[None]:
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        libc.enter_network_namespace(home)
        os.close(home)


def _prepare_directory() -> None:
    """Do as ip(8): names reach other mount namespaces only if the directory is a shared mount.

    Without it the first `ip netns add` would mount the directory over itself and leave our names
    mounted below, where they can no longer be removed. The directory stays, as ip(8) leaves it.
    """
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            _mount("", DIRECTORY, _MS_SHARED | _MS_REC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _mount(str(DIRECTORY), DIRECTORY, _MS_BIND | _MS_REC)
            _mount("", DIRECTORY, _MS_SHARED | _MS_REC)
    finally:
        os.close(fd)


def _mount(source: str, target: Path, flags: int) -> None:
    result = _libc.mount(source.encode(), os.fsencode(target), b"none", ctypes.c_ulong(flags), None)
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")

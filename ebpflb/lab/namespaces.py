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

from pyroute2 import netns

from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.libc import owned

DIRECTORY = Path("/run/netns")

_MNT_DETACH = 2
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def path_of(name: str) -> Path:
    return DIRECTORY / name


def create(name: str) -> int:
    """Make a namespace and return its inode number. FileExistsError when the name is taken."""
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    with owned(os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        # The first one makes the directory a shared mount; two at once would mount it twice.
        fcntl.flock(fd, fcntl.LOCK_EX)
        netns.create(name)
    return path_of(name).stat().st_ino


def delete(name: str, inode: int | None) -> None:
    """Remove a namespace's name; it ends with its last process. Nothing happens if there is none.

    inode: leave what is there alone unless it is this namespace. None: whatever has the name.
    """
    path = path_of(name)
    with contextlib.suppress(FileNotFoundError):
        if inode is not None and path.stat().st_ino != inode:
            return
        netns.remove(name)


@contextlib.contextmanager
def entered(path: Path) -> Iterator[None]:
    """Put the calling thread into a namespace for a while; sockets made there stay there."""
    with owned(os.open(path, os.O_RDONLY)) as there, owned(os.open(_OWN, os.O_RDONLY)) as home:
        libc.enter_network_namespace(there)
        try:
            yield
        finally:
            libc.enter_network_namespace(home)


def write_sysctls(settings: Mapping[str, str]) -> None:
    """Set what lies below /proc/sys/net in the calling thread's namespace."""
    for name, value in settings.items():
        Path("/proc/sys/net", name).write_text(value)


def entry_in_child(namespace: Path, cgroup: Path) -> Callable[[], None]:
    """What a child calls between fork and exec; system calls only, since threads may exist."""

    def enter() -> None:
        os.write(os.open(cgroup / "cgroup.procs", os.O_WRONLY), b"0")
        libc.enter_network_namespace(os.open(namespace, os.O_RDONLY))

    return enter


def detach_all(directory: Path) -> None:
    """Detach every mount at a directory and below it, the latest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    places = [Path(line.split()[1].encode().decode("unicode_escape")) for line in lines]
    for place in reversed(places):
        if place.is_relative_to(directory):
            detach(place)


def detach(path: Path) -> None:
    """Detach the topmost mount from `path`, even while it is in use; nothing if there is none."""
    result = _libc.umount2(os.fsencode(path), _MNT_DETACH)
    code = ctypes.get_errno()
    if result and code not in {errno.EINVAL, errno.ENOENT}:
        raise OSError(code, f"umount {path}: {os.strerror(code)}")

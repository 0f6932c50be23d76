# SPDX-License-Identifier: Apache-2.0
"""One agent at a time serves a cgroup and a network namespace.

Two agents with pins of their own do not see each other's lock on those, nor, in containers, each
other's mounts and processes. What they share is what they serve: a lock on the cgroup's directory
and on the network namespace itself is seen through every mount and in every container, and the
kernel drops it with its holder. Others may hold it too, without any programs: so it only decides
between two sets of programs that are there.
"""

import fcntl
import os
from pathlib import Path

from ebpflb.dataplane.kernel import libc
from ebpflb.errors import ConfigError

_NETWORK = Path("/proc/thread-self/ns/net")


class HookLock:
    """For the network namespace of the calling thread."""

    def __init__(self, cgroup: Path) -> None:
        """Lock what is free. ConfigError if the cgroup root is not a cgroup v2 directory."""
        _require_cgroup2(cgroup)
        places = {f"cgroup {cgroup}": cgroup, "this network namespace": _NETWORK}
        self._files = {name: os.open(path, os.O_RDONLY) for name, path in places.items()}
        self.cgroup_id = os.stat(cgroup).st_ino
        self.held_by_others()

    def close(self) -> None:
        """Unlock; further calls do nothing."""
        while self._files:
            os.close(self._files.popitem()[1])

    def held_by_others(self) -> str:
        """What another process has locked, after trying again; empty if all is ours."""
        return " and ".join(name for name, file in self._files.items() if not _try_to_lock(file))


def _try_to_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_cgroup2(path: Path) -> None:
    try:
        if libc.filesystem_type(path) == libc.CGROUP2_SUPER_MAGIC:
            return
        problem = "not a cgroup v2 directory"
    except OSError as error:
        problem = str(error.strerror)
    raise ConfigError(
        f"--cgroup-root {path}: {problem} (`grep cgroup2 /proc/mounts` lists the mounts)"
    )

# SPDX-License-Identifier: Apache-2.0
"""Where cgroup v2 is mounted."""

from pathlib import Path

from ebpflb.errors import ProbeError

_MOUNTS = Path("/proc/mounts")


def cgroup_root(mounts: Path = _MOUNTS) -> str:
    """The first cgroup v2 mount point. Raises ProbeError if there is none."""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return where.encode().decode("unicode_escape")
    raise ProbeError(
        "cgroup v2 is not mounted: run `mount -t cgroup2 none DIR`, or name it with --cgroup-root"
    )

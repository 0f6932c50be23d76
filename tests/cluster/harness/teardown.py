# SPDX-License-Identifier: Apache-2.0
"""cgroups of a cluster, and its removal from its record alone, also after a crash.

Every process of a cluster is in its part of cgroup v2, which the kernel can kill at once. Mounts of
a node are in its own mount namespace, which ends with its processes; an agent that runs without
such a node mounts its bpffs in the cluster's folder.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libc
from ebpflb.errors import EbpflbError
from ebpflb.lab import processes
from tests.cluster.harness import binaries, network, state
from tests.cluster.harness.layout import Layout, v1_hierarchies

_CPUSET = ("cpuset.cpus", "cpuset.mems")
# The CPU weight of each process outside, including the control plane's, is 1024. The pods of all
# nodes together would get as much, and would stall for seconds on a busy machine.
_CPU_SHARES = "16384"
_PATIENCE = 15.0


def make_cgroups(layout: Layout) -> None:
    """Create the cgroups in which processes of the cluster start, and kubelet's roots in cgroup
    v1.
    """
    with state.locked():
        for member in ("control", "client"):
            layout.cgroup(member).mkdir(parents=True)
        for node in layout.node_names():
            (layout.cgroup(node) / "daemons").mkdir(parents=True)
            for hierarchy in v1_hierarchies():
                _make_v1(hierarchy, layout.cgroup_path(node))
            if not v1_hierarchies():
                _make_v2(layout, node)


def remove(known: state.State) -> None:
    """Remove a cluster, or what is left of it. EbpflbError names what cannot be removed."""
    layout = known.layout
    _end_processes(layout.cgroup())
    for top in (layout.cgroup(), *(Path(f"{h}{layout.cgroup_path()}") for h in v1_hierarchies())):
        remove_cgroup(top)
        with state.locked():
            processes.remove_cgroup_if_empty(top.parent)
    network.remove(layout)
    _unmount_below(layout.folder)
    shutil.rmtree(layout.folder, ignore_errors=True)
    if layout.folder.exists():
        shutil.rmtree(layout.folder)
    state.forget_root()


def remove_orphans() -> Iterator[str]:
    """Remove clusters whose owner has exited; returns a line for each, also if removal fails."""
    with binaries.locked(binaries.cache() / "orphans.lock"):
        for known in state.every():
            if not known.is_orphan:
                continue
            try:
                remove(known)
                yield f"cluster {known.name!r}: removed"
            except EbpflbError as error:
                yield f"cluster {known.name!r}: {error}"


def _make_v1(hierarchy: Path, path: str) -> None:
    cgroup = hierarchy
    for part in Path(path).parts[1:]:
        parent, cgroup = cgroup, cgroup / part
        cgroup.mkdir(exist_ok=True)
        for name in _CPUSET:
            if (cgroup / name).exists():
                (cgroup / name).write_text((parent / name).read_text())
        if (cgroup / "cpu.shares").exists():
            (cgroup / "cpu.shares").write_text(_CPU_SHARES)


def _make_v2(layout: Layout, node: str) -> None:
    """Without v1, kubelet's root is in v2: below the node's own cgroup, which is the node's entire
    tree.
    """
    cgroup = Path(cgroup_root())
    for part in (*Path(layout.cgroup_path(node)).parts[1:], ""):
        controllers = (cgroup / "cgroup.controllers").read_text().split()
        (cgroup / "cgroup.subtree_control").write_text(" ".join(f"+{item}" for item in controllers))
        cgroup /= part
    (cgroup / layout.cgroup_path(node).lstrip("/")).mkdir(parents=True)


def _end_processes(cgroup: Path) -> None:
    if not cgroup.exists():
        return
    (cgroup / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _PATIENCE
    while left := processes.in_cgroup(cgroup):
        if time.monotonic() > deadline:
            raise EbpflbError(f"{cgroup}: processes {sorted(left)} do not end")
        time.sleep(0.02)


def _unmount_below(folder: Path) -> None:
    """The deepest first. /proc escapes blanks in paths, but our folders have none."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted(filter(lambda path: path.startswith(f"{folder}/"), places), reverse=True):
        libc.unmount(Path(place))


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup; the kernel may need a moment after the last process."""
    deadline = time.monotonic() + _PATIENCE
    while cgroup.exists():
        with contextlib.suppress(OSError):
            processes.remove_cgroup(cgroup)
            return
        if time.monotonic() > deadline:
            raise EbpflbError(f"{cgroup}: cannot be removed: something is still inside")
        time.sleep(0.05)

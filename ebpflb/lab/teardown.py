# SPDX-License-Identifier: Apache-2.0
"""Removes what a lab's state says was made, wherever the making or an earlier removal stopped."""

from pathlib import Path

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.lab import cgroups, namespaces, processes, state
from ebpflb.lab.processes import Ownership
from ebpflb.lab.state import State


def take_down(name: str) -> bool:
    """Remove a lab; False when there is none. EbpflbError when something of it cannot go."""
    with state.locked(name):
        if (state.directory_of(name) / state.FILE).exists():
            remove(state.load(name))
            return True
    with state.locked_root():
        state.drop_unmade(name)
    return False


def remove(made: State) -> None:
    """Remove all that can be removed; the state stays, for another try, if something cannot.

    Devices go with their namespaces, pins with their file system.
    """
    cgroup = Path(made.cgroup)
    _refuse_inside(made, cgroup)
    recorded = frozenset(made.processes.values())
    left = processes.end(Ownership(made.config.name, cgroup, recorded))
    for name, inode in made.namespaces.items():
        namespaces.delete(name, inode)
    namespaces.detach(Path(made.bpffs))
    if left:
        raise EbpflbError(
            f"lab {made.config.name!r}: {', '.join(left)} in {cgroup} did not come from the lab "
            "or does not end: move or end it, then take the lab down again"
        )
    cgroups.remove(cgroup)
    made.discard()


def _refuse_inside(made: State, cgroup: Path) -> None:
    own = Path("/proc/self/cgroup").read_text().splitlines()
    inside = f"/{cgroups.TOP}/{made.config.name}"
    if any(line.startswith("0::") and f"{inside}/" in f"{line}/" for line in own):
        raise ConfigError(f"this process runs inside lab {made.config.name!r} ({cgroup}): leave it")

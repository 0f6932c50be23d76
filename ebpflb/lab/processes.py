# SPDX-License-Identifier: Apache-2.0
"""The cgroups and processes of a lab. Processes are ended by id, verified, never by name.

cgroups are <mount>/ebpflb-lab/<lab>/<node>/<pod>. Whatever runs on a node is inside the node's
directory, so that a socket hook attached there sees exactly one node.

A process is the lab's if it is in the lab's cgroup and, beyond that, is a recorded one (id and
start time), carries the lab's environment marker, or has a parent of which this is true. Somebody
else's process that was moved into the cgroup is left alone and reported.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TOP = "ebpflb-lab"


def in_cgroup(cgroup: Path) -> set[int]:
    """The ids of all processes in a cgroup and below it; empty if it does not exist."""
    found: set[int] = set()
    for directory in _tree(cgroup):
        with contextlib.suppress(OSError):
            found.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return found


def remove_cgroup(cgroup: Path) -> None:
    """Remove a cgroup with all below it. OSError (EBUSY) while it has processes."""
    for directory in _tree(cgroup):
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()


def remove_cgroup_if_empty(cgroup: Path) -> None:
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def _tree(cgroup: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(cgroup, topdown=False):
        yield Path(directory)


# Not EBPFLB_...: those are settings of the agent, which refuses names that it does not know.
MARKER = "EBPFLBLAB_MEMBER"

_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted after the command's name: state, parent, ..., start time.
_PARENT, _START_TIME = 1, 19
# Between fork and exec a child does not carry the marker yet.
_PATIENCE = 1.0
# How long the killed ones may take to end, and how long all of it may take.
_WAIT, _WAIT_FOR_ALL = 10.0, 60.0


class StartedProcess(NamedTuple):
    """A process: ids are reused, but not with the same start time (in clock ticks)."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """How to tell the processes of one lab."""

    lab: str
    cgroup: Path
    recorded: frozenset[StartedProcess]

    def own(self, pids: Collection[int]) -> set[int]:
        """Those among `pids` that the lab started, and their descendants."""
        known: dict[int, bool] = {}

        def is_own(pid: int) -> bool:
            if pid not in known:
                known[pid] = False
                parent = _stat_field(pid, _PARENT)
                known[pid] = (
                    identity(pid) in self.recorded
                    or _has_marker(pid, self.lab)
                    or (parent in pids and is_own(parent))
                )
            return known[pid]

        return set(filter(is_own, pids))


def identity(pid: int) -> StartedProcess | None:
    """None when there is no such process, or it has ended and is not yet waited for."""
    start_time = _stat_field(pid, _START_TIME)
    return StartedProcess(pid, start_time) if start_time else None


def marker(lab: str, member: str) -> str:
    """The value of the environment variable that all processes of a member inherit."""
    return f"{lab}/{member}"


def end(ownership: Ownership) -> list[str]:
    """Kill the lab's processes and wait for them. Describes what is left in the cgroup."""
    started = own_seen = time.monotonic()
    while pids := in_cgroup(ownership.cgroup):
        now = time.monotonic()
        if own := ownership.own(pids):
            own_seen = now
            kill(ownership.cgroup, own)
        if now - own_seen > _PATIENCE or now - started > _WAIT_FOR_ALL:
            return [_describe(pid) for pid in sorted(pids)]
        if not own:
            time.sleep(0.01)
    return []


def kill(cgroup: Path, pids: Iterable[int]) -> None:
    """End those of the processes that are in the cgroup, and wait for them.

    SIGKILL is sent through pidfds, which still mean the same process after the second look.
    """
    with contextlib.ExitStack() as opened:
        pidfds = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfds[pid] = os.pidfd_open(pid)
                opened.callback(os.close, pidfds[pid])
        killed = pidfds.keys() & in_cgroup(cgroup)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)
        deadline = time.monotonic() + _WAIT
        for pid in killed:
            ended = select.poll()
            ended.register(pidfds[pid], select.POLLIN)
            ended.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _stat_field(pid: int, field: int) -> int:
    """A number from /proc/PID/stat; 0 when the process is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in {"Z", "X"} else int(fields[field])


def _has_marker(pid: int, lab: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    wanted = f"{MARKER}={marker(lab, '')}".encode()
    return any(entry.startswith(wanted) for entry in environment.split(b"\0"))


def _describe(pid: int) -> str:
    name = "?"
    with contextlib.suppress(OSError):
        name = (_PROC / str(pid) / "comm").read_text().strip()
    return f"process {pid} ({name})"

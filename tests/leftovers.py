# SPDX-License-Identifier: Apache-2.0
"""Leftovers of killed runs. The next run removes and reports them.

Whatever belongs to a live process is not touched.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ebpflb.dataplane.kernel.libc import owned
from ebpflb.errors import EbpflbError
from ebpflb.lab import build as labs
from ebpflb.lab import namespaces, processes
from tests.cluster.harness import teardown
from tests.cluster.harness.binaries import cache, locked
from tests.image import build as image
from tests.own import VARIABLE, cgroups_named, is_leftover, mark_processes

_PROC = Path("/proc")
_SECONDS = 5.0


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Of two runs that begin together only one reports a leftover."""
    with locked(cache().parent / "leftovers.lock"):
        yield


def begin_run(say: Callable[[str], None]) -> None:
    """Remove and report leftovers, and mark the processes that this one will start."""
    with one_at_a_time():
        for line in remove_leftovers():
            say(f"left by a run that was killed: {line}")
    mark_processes()


def remove_leftovers() -> Iterator[str]:
    """Call it inside one_at_a_time(). Returns a line for each, also if removal fails."""
    yield from labs.remove_orphans()
    yield from teardown.remove_orphans()
    yield from _processes()
    yield from _cgroups()
    yield from _namespaces()
    yield from _mounts()
    yield from image.remove_working_containers()


def _processes() -> Iterator[str]:
    """Those outside labs and clusters."""
    for path in _PROC.glob("[0-9]*"):
        pid = int(path.name)
        if pid == os.getpid() or not _is_of_a_killed_run(pid):
            continue
        with suppress(OSError):
            name = (path / "comm").read_text().strip()
            if _end(pid):
                yield f"process {pid} ({name}): ended"


def _is_of_a_killed_run(pid: int) -> bool:
    prefix = f"{VARIABLE}=".encode()
    with suppress(OSError):
        for each in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if each.startswith(prefix):
                return is_leftover(os.fsdecode(each.removeprefix(prefix)))
    return False


def _end(pid: int) -> bool:
    """Kill it; returns whether it was still the process that was found."""
    with owned(os.pidfd_open(pid)) as process:
        if not _is_of_a_killed_run(pid):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        poller = select.poll()
        poller.register(process, select.POLLIN)
        return bool(poller.poll(_SECONDS * 1000))


def _cgroups() -> Iterator[str]:
    """With the processes inside, in cgroup v2 and v1."""
    for path in list(cgroups_named("ebpflb-test-")):
        if is_leftover(path.name):
            processes.kill(path, processes.in_cgroup(path))
            try:
                teardown.remove_cgroup(path)
                yield f"{path}: removed"
            except EbpflbError as error:
                yield str(error)


def _namespaces() -> Iterator[str]:
    for path in namespaces.DIRECTORY.glob("ebpflb-test-*"):
        if is_leftover(path.name):
            namespaces.delete(path.name, None)
            yield f"network namespace {path}: removed"


def _mounts() -> Iterator[str]:
    """The last one first."""
    for line in reversed((_PROC / "self/mounts").read_text().splitlines()):
        source, path, *_ = line.split()
        if is_leftover(source):
            namespaces.detach(Path(path))
            yield f"{path}: unmounted"

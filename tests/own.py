# SPDX-License-Identifier: Apache-2.0
"""Names that identify the process that created something and must remove it.

After that process has exited, everything with such a name is a leftover: `tests.leftovers` removes
it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ebpflb.lab.processes import StartedProcess, identity

VARIABLE = "EBPFLBTEST_OWNER"
"""Inherited by all processes that a run of tests starts."""

_NAME = re.compile(r"ebpflb-test-(\d+)-(\d+)-(\d+)-")
# Processes of another PID namespace are invisible, though cgroups may be visible.
_PID_NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


def own_name(rest: str) -> str:
    """A name that other processes do not use, e.g. of a cgroup."""
    owner = identity(os.getpid())
    assert owner
    return f"ebpflb-test-{_PID_NAMESPACE}-{owner.pid}-{owner.start_time}-{rest}"


def cgroups_named(start: str) -> Iterator[Path]:
    """cgroups with this name prefix, in every hierarchy; others may be created or removed
    meanwhile.
    """
    for place, names, _ in os.walk("/sys/fs/cgroup"):
        yield from (Path(place, name) for name in names if name.startswith(start))


def mark_processes() -> None:
    """Mark all processes that this one starts with its name."""
    os.environ[VARIABLE] = own_name("run")


def is_leftover(name: str) -> bool:
    """Whether something with this name is a leftover, because its process has exited."""
    if not (found := _NAME.match(name)):
        return False
    namespace, pid, start_time = map(int, found.groups())
    return namespace == _PID_NAMESPACE and identity(pid) != StartedProcess(pid, start_time)

# SPDX-License-Identifier: Apache-2.0
"""The lab's part of the cgroup v2 tree: <mount>/ebpflb-lab/<lab>/<node>/<pod>.

Whatever runs on a node is inside the node's directory, so that a socket hook attached there sees
exactly one node.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

TOP = "ebpflb-lab"


def processes(cgroup: Path) -> set[int]:
    """The ids of all processes in a cgroup and below it; empty if it does not exist."""
    found: set[int] = set()
    for directory in _tree(cgroup):
        with contextlib.suppress(OSError):
            found.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return found


def remove(cgroup: Path) -> None:
    """Remove a cgroup with all below it. OSError (EBUSY) while it has processes."""
    for directory in _tree(cgroup):
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()


def remove_if_empty(cgroup: Path) -> None:
    """Remove a cgroup that nobody needs any more; otherwise it stays."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def _tree(cgroup: Path) -> Iterator[Path]:
    """All directories from the leaves up."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        yield Path(directory)

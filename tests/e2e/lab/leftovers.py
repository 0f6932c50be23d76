# SPDX-License-Identifier: Apache-2.0
"""Shared by the lab's own tests: the command line, and a search for leftovers."""

import os
import subprocess
import sys
from pathlib import Path

from ebpflb.config.cgroup import cgroup_root
from ebpflb.lab import processes, state

NAME = f"test-{os.getpid()}"
COMMAND = [sys.executable, "-m", "ebpflb", "lab"]


def lab_command(*arguments, **options):
    # Without an environment of its own it would inherit the COLUMNS that readline sets in C.
    options = {"env": dict(os.environ), **options}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def leftovers(name=NAME):
    """Everything on this machine that has the lab's name."""
    found = [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    found += [str(path) for path in Path(cgroup_root(), processes.TOP).glob(name)]
    found += [str(path) for path in state.ROOT.glob(name)]
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [line for line in mounts if f"/{name}/" in line or f"/{name}-" in line]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"EBPFLBLAB_MEMBER={name}/".encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found

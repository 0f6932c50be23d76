# SPDX-License-Identifier: Apache-2.0
"""The next run removes and names what a killed run left behind, and leaves running ones alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.lab import processes, state
from tests.e2e.lab.leftovers import lab_command
from tests.leftovers import one_at_a_time, remove_leftovers

# Creates one resource of each kind, prints their names, and waits to be killed.
RUN = """
import subprocess, sys
from pathlib import Path
from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libc
from ebpflb.lab import Lab, LabConfig, namespaces
from tests.own import mark_processes, own_name

mark_processes()
lab = Lab.up(LabConfig(sys.argv[1], nodes=1, pods=1))
namespaces.create(own_name("pod"))
mount = Path(sys.argv[2])
libc.mount_bpffs(mount, own_name("bpffs"))
cgroup = Path(cgroup_root(), own_name("a"))
inside = cgroup / "inside"
inside.mkdir(parents=True)
sleeping = [
    subprocess.Popen(["sleep", "1000"], env=env, stdout=subprocess.DEVNULL) for env in (None, {})
]
(inside / "cgroup.procs").write_text(str(sleeping[1].pid))
print(namespaces.path_of(own_name("pod")), cgroup, *(each.pid for each in sleeping), flush=True)
input()
"""


class Run:
    """A process with one resource of each kind."""

    def __init__(self, folder: Path) -> None:
        self.lab = folder.name.replace("_", "-").lower()
        self.mount = folder / "bpffs"
        self.mount.mkdir()
        command = [sys.executable, "-c", RUN, self.lab, str(self.mount)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        namespace, cgroup, marked, inside = self.process.stdout.readline().split()
        self.namespace, self.cgroup = Path(namespace), Path(cgroup)
        self.marked, self.inside = int(marked), int(inside)

    def lines(self) -> set[str]:
        """The line about each resource."""
        return {
            f"lab {self.lab!r}: removed",
            f"process {self.marked} (sleep): ended",
            f"{self.cgroup}: removed",
            f"network namespace {self.namespace}: removed",
            f"{self.mount}: unmounted",
        }

    def there(self) -> list[bool]:
        """Whether each resource exists."""
        return [
            state.directory_of(self.lab).exists(),
            *(processes.identity(pid) is not None for pid in (self.marked, self.inside)),
            self.cgroup.exists(),
            self.namespace.exists(),
            self.mount.is_mount(),
        ]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    with one_at_a_time():
        yield made
        made.kill()
        list(remove_leftovers())


def test_what_a_killed_run_left_is_removed_and_named_once(run: Run):
    run.kill()
    assert all(run.there())
    shown = lab_command("status", "--name", run.lab).stdout
    assert shown.splitlines()[0].endswith(", left by a process that was killed")
    assert run.lines() <= set(remove_leftovers())
    assert not any(run.there())
    assert not run.lines() & set(remove_leftovers())


def test_what_a_run_has_that_is_alive_stays(run: Run):
    assert not run.lines() & set(remove_leftovers())
    assert all(run.there())


def test_what_cannot_be_removed_is_named_and_the_rest_is_removed(run: Run):
    lab_cgroup = Path(state.load(run.lab).cgroup)
    run.kill()
    with subprocess.Popen(["sleep", "1000"], env={}) as stranger:
        (lab_cgroup / "node1/cgroup.procs").write_text(str(stranger.pid))
        lines = set(remove_leftovers())
        stranger.kill()
    (kept,) = (line for line in lines if line.startswith(f"lab {run.lab!r}: process"))
    assert "move or stop it" in kept
    assert len(run.lines() - lines) == 1

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebpflb.lab import processes
from ebpflb.lab.processes import Ownership, StartedProcess

# They say an empty line when they have come to their own code.
SLEEP = [sys.executable, "-I", "-S", "-c", "print(flush=True); import time; time.sleep(60)"]


@pytest.fixture
def start():
    """Start sleepers and end them afterwards; each has come to its own code."""
    started = []

    def begin(argv=SLEEP, **environment):
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def cgroup(tmp_path):
    """A directory that looks like a cgroup and lists these processes."""

    def listing(*pids):
        (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return tmp_path

    return listing


def own(cgroup, pids, recorded=()):
    return Ownership("demo", cgroup, frozenset(recorded)).own(pids)


def test_a_process_is_known_by_id_and_start_time(start):
    process = start()
    known = processes.identity(process.pid)
    assert known
    assert known == processes.identity(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.identity(process.pid) is None
    process.wait()
    assert processes.identity(process.pid) is None


def test_a_recorded_process_is_the_labs_but_not_another_one_with_its_id(start, cgroup):
    known = processes.identity(start().pid)
    assert known
    assert own(cgroup(), {known.pid}, [known]) == {known.pid}
    other = StartedProcess(known.pid, known.start_time + 1)
    assert own(cgroup(), {known.pid}, [other]) == set()


def test_the_environment_shows_whose_a_process_is(start, cgroup):
    ours = start(**{processes.MARKER: processes.marker("demo", "node1")})
    others = start(**{processes.MARKER: processes.marker("demo2", "node1")})
    plain = start(TEXT=f"{processes.MARKER}=demo/node1")
    assert own(cgroup(), {ours.pid, others.pid, plain.pid}) == {ours.pid}


def test_a_child_of_the_labs_process_is_the_labs_without_a_marker(start, cgroup):
    code = (
        "import os, sys; os.posix_spawn(sys.argv[1], sys.argv[1:], {}); import time; time.sleep(60)"
    )
    parent = start(
        [sys.executable, "-I", "-S", "-c", code, *SLEEP],
        **{processes.MARKER: processes.marker("demo", "node1")},
    )
    (child,) = children(parent.pid)
    assert own(cgroup(), {parent.pid, child}) == {parent.pid, child}
    assert own(cgroup(), {child}) == set()
    os.kill(child, 9)


def children(pid):
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in listed.split()]


def test_strangers_in_the_cgroup_are_described_and_left_alone(start, cgroup):
    stranger = start()
    path = cgroup(stranger.pid)
    (left,) = processes.end(Ownership("demo", path, frozenset()))
    assert left.startswith(f"process {stranger.pid} (python")
    assert stranger.poll() is None


def test_the_labs_processes_are_ended_also_when_strangers_are_there(start, cgroup, monkeypatch):
    stranger = start()
    ours = start(**{processes.MARKER: processes.marker("demo", "node1")})
    path = cgroup(stranger.pid, ours.pid)
    listed = processes.in_cgroup
    monkeypatch.setattr(
        processes,
        "in_cgroup",
        lambda each: {pid for pid in listed(each) if processes.identity(pid)},
    )
    left = processes.end(Ownership("demo", path, frozenset()))
    assert ours.wait(60) == -9
    assert len(left) == 1
    assert stranger.poll() is None


def test_a_process_that_left_the_cgroup_before_the_second_look_is_spared(start, cgroup):
    process = start()
    processes.kill(cgroup(), [process.pid])
    assert process.poll() is None


def test_nothing_is_left_of_a_cgroup_that_is_not_there(tmp_path):
    assert processes.end(Ownership("demo", tmp_path / "none", frozenset())) == []

# SPDX-License-Identifier: Apache-2.0
"""From up to down, also when it fails: nothing is left behind, and nothing foreign is touched."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libc
from ebpflb.errors import ConfigError, EbpflbError, ProbeError
from ebpflb.lab import Lab, LabConfig, Stack, build, namespaces, processes, state
from ebpflb.lab.build import take_down
from tests.e2e.harness.waiting import wait_until_equal
from tests.e2e.lab.leftovers import NAME, lab_command, leftovers


@pytest.fixture
def name():
    """The name of a lab that the test builds; deleted in any case."""
    take_down(NAME)
    yield NAME
    take_down(NAME)
    assert leftovers() == []


def test_a_namespace_with_a_labs_name_that_is_no_labs_is_not_touched(name):
    namespaces.create(f"{name}-node1")
    try:
        with pytest.raises(ConfigError, match=rf"/run/netns/{name}-node1 exists and belongs to no"):
            Lab.up(LabConfig(name))
        assert not take_down(name)
        assert leftovers()[0] == f"/run/netns/{name}-node1"
    finally:
        namespaces.delete(f"{name}-node1", None)


def test_a_namespace_that_took_the_name_later_is_not_touched(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=0))
    with lab.client.namespace.open():  # Otherwise its number might be reused.
        namespaces.delete(f"{name}-client", None)
        inode = namespaces.create(f"{name}-client")
    try:
        lab.down()
        assert lab.client.namespace.stat().st_ino == inode
    finally:
        namespaces.delete(f"{name}-client", inode)


def test_down_can_be_repeated(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=1))
    lab.down()
    assert leftovers() == []
    lab.down()
    assert lab_command("down", "--name", name).stdout == f"lab '{name}' was not up\n"
    with pytest.raises(ConfigError, match=r"node1: lab .* is down"):
        lab.node("node1").exec(["true"])


def test_down_unmounts_what_agents_have_mounted_in_its_directory(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=0))
    for place in ("of another agent", "bpf/node1"):
        (lab.directory / place).mkdir(exist_ok=True)
        libc.mount_bpffs(lab.directory / place, "ebpflb")
    lab.down()
    assert not lab.directory.exists()
    assert str(lab.directory) not in Path("/proc/self/mounts").read_text()


def sleeping(name: str) -> tuple[int, int]:
    """How many of the lab's processes are sleep(1), and how many there are."""
    programs = []
    for pid in processes.in_cgroup(Path(cgroup_root(), processes.TOP, name)):
        with contextlib.suppress(OSError):
            programs.append(Path(f"/proc/{pid}/comm").read_text())
    return programs.count("sleep\n"), len(programs)


def test_down_ends_all_that_was_started_inside(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=1))
    children = [
        lab.node("node1").popen(["sleep", "100"]),
        lab.pod("pod-1-1").popen(["sh", "-c", "env -i sleep 100 & wait $!"]),
        lab.client.popen(["sh", "-c", "setsid -f sleep 100; sleep 100"]),
    ]
    wait_until_equal(lambda: sleeping(name), (4, 7))
    lab.down()
    # A shell may outlive its child just long enough to report it: 128 + 9.
    assert {child.wait(60) for child in children} <= {-signal.SIGKILL, 128 + signal.SIGKILL}
    assert leftovers() == []


def test_down_spares_a_foreign_process_and_says_so(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=0))
    with subprocess.Popen(["sleep", "100"]) as foreign:
        try:
            (lab.node("node1").cgroup / "cgroup.procs").write_text(str(foreign.pid))
            with pytest.raises(EbpflbError, match=rf"process {foreign.pid} \(sleep\) in .* move"):
                lab.down()
            assert foreign.poll() is None
            assert state.names()
        finally:
            foreign.kill()
    lab.down()
    assert leftovers() == []


STEPS = ("make_namespaces", "make_network", "make_places", "start_pods")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_down_cleans_up_after_up_was_killed(name, step, when):
    code = f"""
import os, signal, sys
from ebpflb.lab import Lab, LabConfig, build
step = build.{step}
def last(*arguments):
    if {when == "after"}:
        step(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
build.{step} = last
Lab.up(LabConfig({name!r}), owned=False)
"""
    killed = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert leftovers()
    shown = lab_command("status", "--name", name)
    assert (shown.returncode, "not complete" in shown.stdout) == (1, True)
    assert take_down(name)
    assert leftovers() == []


@pytest.mark.parametrize("step", STEPS)
def test_up_that_fails_removes_what_it_made(name, step, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, step, fail)
    with pytest.raises(ProbeError, match=f"lab '{name}' could not be built: .* No space left"):
        Lab.up(LabConfig(name))
    assert leftovers() == []


def test_up_does_not_return_before_pods_are_reached(name, monkeypatch):
    cut = build.make_network

    def without_a_route(layout):
        cut(layout)
        with namespaces.entered(namespaces.path_of(f"{name}-node1")):
            route = str(layout.ranges[0].pods(2))
            subprocess.run(["ip", "route", "del", route], check=True)

    monkeypatch.setattr(build, "make_network", without_a_route)
    monkeypatch.setattr("ebpflb.lab.cluster._REACH_TIMEOUT", 1.0)
    with pytest.raises(ProbeError, match=r"paths fail; \S+ to pod-\d-1"):
        Lab.up(LabConfig(name, pods=1, family=Stack.IPV4))


def test_up_uses_every_device_and_every_route(name, monkeypatch):
    tried: list[build.Attempt] = []
    monkeypatch.setattr(build, "wait_reachable", lambda paths, _timeout: tried.extend(paths))
    monkeypatch.setattr(build, "start_pods", lambda *_: None)
    with Lab.up(LabConfig(name, nodes=3, pods=2, family=Stack.IPV4)) as lab:
        between = {(each.source.name, each.pod) for each in tried}
        for pod in lab.pods:
            assert (pod.node, pod.name) in between
            assert [source for source, name in between if name == pod.name and source != pod.node]
        first = {pod for pod in lab.pods if pod.name.endswith("-1")}
        for source in (*lab.nodes, *first):
            assert {(source.name, pod.name) for pod in first if pod.node != source.node} <= between


def test_a_refused_command_is_named(name, monkeypatch):
    lines = ["link set lo up", "link set x up"]
    monkeypatch.setattr("ebpflb.lab.network.commands", lambda *_: lines)
    with pytest.raises(ProbeError, match=rf"{name}-underlay: ip link set x up: Cannot find device"):
        Lab.up(LabConfig(name))


def test_the_command_line_from_up_to_down(name, tmp_path):
    up = lab_command("up", "--name", name, "--nodes", "1", "--pods", "1", "-o", "json")
    (shown,) = json.loads(up.stdout)
    state.own(name)
    assert (shown["name"], shown["complete"]) == (name, True)
    assert [row["name"] for row in shown["members"]] == ["underlay", "node1", "pod-1-1", "client"]
    again = lab_command("up", "--name", name)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)

    inside = (
        "exec",
        "--name",
        name,
        "pod-1-1",
        "--",
        "sh",
        "-c",
        "ip -br -4 addr show eth0; exit 7",
    )
    done = lab_command(*inside)
    assert done.returncode == 7
    assert shown["members"][2]["addresses"][0] in done.stdout
    missing = lab_command("exec", "--name", name, "node1", "no-such-command")
    assert (missing.returncode, missing.stderr) == (
        1,
        "Error: no-such-command: No such file or directory\n",
    )

    (tmp_path / "more.yaml").write_text("---\n")
    assert lab_command("apply", "--name", name, str(tmp_path)).stdout == "more.yaml: on node1\n"
    status = lab_command("status", "--name", name)
    assert (status.returncode, status.stdout.count(" up\n")) == (0, 4)
    assert lab_command("down", "--name", name).stdout == f"lab '{name}' is down\n"
    assert lab_command("status", "--name", name).returncode == 1

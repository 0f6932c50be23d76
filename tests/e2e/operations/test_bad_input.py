# SPDX-License-Identifier: Apache-2.0
"""Operators' mistakes: one line names the error, and the current configuration stays in force."""

import re
from collections.abc import Iterator

import pytest

from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.lab import LabConfig, LabNode
from ebpflb.lab.manifests import write_atomically
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import built, lab_name
from tests.e2e.harness.command import PROGRAM, ebpflb, error_line, status
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.questions import names, pods_at
from tests.e2e.harness.waiting import wait_until

PORT = 80

WRONG = {
    "unknown flag": (["--manifest", "x"], r"--manifest\b.*--manifests"),
    "argument": (["services.yaml"], "services.yaml"),
    "unknown choice": (["--socket-lb", "none"], "--socket-lb: 'none': .*all, host"),
    "attach": (["--attach", "tcx2"], "--attach: 'tcx2': .*tcx"),
    "range": (["--cluster-cidr", "10.0.0.0/33"], "--cluster-cidr: .*10.0.0.0/33"),
    "address": (["--metrics-bind-address", "1"], "--metrics-bind-address: '1': want IP:PORT"),
    "name": (["--node-name", "Node_1"], "--node-name: 'Node_1': want"),
    "no settings file": (["--config", "/nonexistent.yaml"], "/nonexistent.yaml: No such file"),
    "no manifests": (
        ["--manifests", "/nonexistent", "--init-only"],
        "--manifests /nonexistent: No such file or directory: create it",
    ),
    "an option as the path": (["--manifests", "--help"], "--manifests --help: No such file"),
    "no cgroup": (["--cgroup-root", "/nonexistent"], "--cgroup-root /nonexistent: No such file"),
    "cgroup v1": (["--cgroup-root", "/proc"], "--cgroup-root /proc: not a cgroup v2"),
    "no place for pins": (["--bpffs-root", "/dev/null/pins"], "/dev/null/pins: Not a directory"),
    "place that cannot be made": (["--bpffs-root", "/proc/pins"], "/proc/pins: No such file"),
}


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    """A node without an agent and without pins."""
    with built(LabConfig(lab_name(), nodes=1, pods=0)) as lab:
        yield lab.node("node1")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_line_gives_one_line(node, name):
    arguments, expected = WRONG[name]
    line = error_line(ebpflb(node, "run", *arguments))
    assert re.search(expected, line)
    assert not any(node.bpffs.glob("*"))


def test_an_unknown_command_gives_one_line(node):
    assert "frobnicate" in error_line(ebpflb(node, "frobnicate"))


def test_an_unknown_variable_gives_one_line(node):
    line = error_line(ebpflb(node, "run", EBPFLB_NODENAME="node1"))
    assert "EBPFLB_NODENAME (did you mean EBPFLB_NODE_NAME" in line


def test_without_manifests_run_says_what_is_needed(node):
    line = error_line(ebpflb(node, "run", "--manifests", ""))
    assert line.startswith("--manifests")


def test_without_root_run_says_what_is_needed(node):
    done = node.exec(["unshare", "--user", *PROGRAM, "run"], check=False)
    assert "needs root" in error_line(done)


def test_pins_of_a_newer_layout_are_not_touched(node):
    pins = node.bpffs / f"{LAYOUT_VERSION + 1}-7"
    (pins / "complete").mkdir(parents=True)
    try:
        line = error_line(ebpflb(node, "run"))
        assert f"{pins}: made by a newer version" in line
        assert pins.is_dir()
    finally:
        assert ebpflb(node, "cleanup").returncode == 0
    assert not pins.exists()


def test_two_agents_do_not_share_pins(cluster):
    agent = cluster.agents["node1"]
    line = error_line(ebpflb(agent.node, "run"))
    assert line.startswith(f"{agent.node.bpffs}: another agent uses these pins: ")
    assert agent.is_running()


def test_cleanup_leaves_alone_what_an_agent_uses(cluster, lab):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    line = error_line(ebpflb(node, "cleanup"))
    assert line.startswith(f"{node.bpffs}: another agent uses these pins: ")
    (*_, place) = cluster.cluster_ips(spec)
    assert pods_at(lab.pod("pod-1-1"), place, PORT) == names(lab.pods)


def test_a_broken_manifest_keeps_what_it_said_before(cluster, lab):
    first, second = lab.pod("pod-1-2"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    node, file = lab.node("node1"), f"{spec.name}.yaml"
    broken = "kind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: 80}\n"
    write_atomically(node.manifests, file, broken.encode())
    errors = wait_until(lambda: status(node)["agent"]["source_errors"], "the error is shown")
    (text,) = errors.values()
    assert file in text
    assert "spec.ports" in text
    for place in cluster.cluster_ips(spec):
        assert pods_at(lab.pod("pod-1-1"), place, PORT) == {first.name}
    cluster.serve(spec, [second])
    wait_until(lambda: not status(node)["agent"]["source_errors"], "the error is gone")
    for place in cluster.cluster_ips(spec):
        assert pods_at(lab.pod("pod-1-1"), place, PORT) == {second.name}


def test_what_is_broken_does_not_keep_other_manifests_from_being_read(cluster, lab):
    node = lab.node("node1")
    write_atomically(node.manifests, "broken.yaml", b"kind: [")
    try:
        wait_until(lambda: status(node)["agent"]["source_errors"], "the error is shown")
        spec = cluster.serve(cluster.new(), lab.pods, wait=False)
        (place, *_) = cluster.cluster_ips(spec)
        wait_until(lambda: pods_at(lab.pod("pod-1-1"), place, PORT) == names(lab.pods), "is served")
    finally:
        (node.manifests / "broken.yaml").unlink()


def test_manifests_may_be_away_while_the_agent_runs(node, tmp_path):
    place = tmp_path / "manifests"
    place.mkdir()
    agent = NodeAgent(node, tmp_path / "log", ["--manifests", str(place)])
    try:
        agent.start()
        agent.wait_in_sync()
        place.rmdir()
        wait_until(lambda: status(node)["agent"]["source_errors"], "the error is shown")
        (text,) = status(node)["agent"]["source_errors"].values()
        assert f"{place}: No such file or directory" in text
        place.mkdir()
        for file in node.manifests.iterdir():
            write_atomically(place, file.name, file.read_bytes())
        wait_in_force([node])
        assert status(node)["problems"] == []
        assert not status(node)["agent"]["source_errors"]
    finally:
        agent.kill()
        assert ebpflb(node, "cleanup").returncode == 0

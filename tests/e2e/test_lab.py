# SPDX-License-Identifier: Apache-2.0
"""The lab itself: who reaches whom, what is inside what, and that nothing stays behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ebpflb.config import cgroup_root
from ebpflb.errors import ConfigError, EbpflbError, ProbeError
from ebpflb.lab import Cni, Lab, LabConfig, Stack, build, cgroups, namespaces, reach, state
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.teardown import take_down

NAME = f"test-{os.getpid()}"
SMALL = f"small-{os.getpid()}"
COMMAND = [sys.executable, "-c", "from ebpflb.cli.lab import lab; lab()"]


def ebpflb_lab(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def leftovers(name=NAME):
    """Whatever on this machine still has the lab's name."""
    found = [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    found += [str(path) for path in Path(cgroup_root(), cgroups.TOP).glob(name)]
    found += [str(path) for path in state.ROOT.glob(name)]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"EBPFLBLAB_MEMBER={name}/".encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


@pytest.fixture
def name():
    """The name of a lab that the test builds; taken down whatever happens."""
    yield NAME
    take_down(NAME)
    assert leftovers() == []


@pytest.fixture(scope="module")
def small():
    """A lab that no test changes for others: one node with one pod, another with one."""
    with Lab.up(LabConfig(SMALL, nodes=2, pods=1)) as lab:
        yield lab
    assert leftovers(SMALL) == []


def ask(member, address, protocol):
    """What the pod at an address tells about a question from a member."""
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with member.entered():
        sock = socket.socket(family, kind)
    with sock:
        sock.settimeout(10)
        sock.connect((address, 8080))
        sock.send(b"who\n")
        return json.loads(sock.recv(4096))


@pytest.mark.parametrize("cni", list(Cni))
@pytest.mark.parametrize("family", list(Stack))
def test_pods_and_hosts_reach_all_pods_with_their_own_address(name, cni, family):
    with Lab.up(LabConfig(name, pods=2, cni=cni, family=family)) as lab:
        first = lab.pod("pod-1-1")
        for target in ("pod-1-2", "pod-2-1"):
            for own, address in zip(first.addresses, lab.pod(target).addresses, strict=True):
                for protocol in ("TCP", "UDP"):
                    seen = ask(first, address, protocol)
                    assert (seen["pod"], seen["client_address"]) == (target, own)
                    assert seen["local_address"] == address
                    assert ask(lab.node("node1"), address, protocol)["pod"] == target


@pytest.mark.parametrize("cni", list(Cni))
def test_full_sized_segments_pass(name, cni):
    with Lab.up(LabConfig(name, pods=1, cni=cni)) as lab:
        for address in lab.pod("pod-2-1").addresses:
            host = f"[{address}]" if ":" in address else address
            page = ["curl", "-sS", "-m5", "--data-binary", "@-", f"http://{host}:8080/echo"]
            done = lab.pod("pod-1-1").exec(page, input="x" * 1_000_000)
            assert len(done.stdout) == 1_000_000


def test_pods_reach_the_addresses_of_both_nodes(small):
    for node in small.nodes:
        for address in node.addresses:
            reach.wait_reachable([reach.Path(small.pod("pod-1-1"), address, 9)], 1)


def test_the_client_is_outside(small):
    result = small.client.load(small.pod("pod-1-1").ipv4, 8080, count=1, timeout=0.2)
    assert result.errors == {"timeout": 1}


def test_commands_run_inside_namespace_and_cgroup(small):
    node = small.node("node1")
    script = "cat /proc/self/cgroup; readlink /proc/self/ns/net; cat"
    done = node.exec(["sh", "-c", script], input="typed\n")
    lines = done.stdout.splitlines()
    assert f"0::/{cgroups.TOP}/{small.name}/node1" in lines
    assert lines[-2:] == [f"net:[{node.namespace.stat().st_ino}]", "typed"]
    assert os.readlink("/proc/self/ns/net") != lines[-2]


def test_a_node_has_its_pods_in_its_cgroup_and_nobody_elses(small):
    status = {row.name: row.pid for row in small.status()}
    for node, pod in (("node1", "pod-1-1"), ("node2", "pod-2-1")):
        assert cgroups.processes(small.node(node).cgroup) == {status[pod]}


def test_pods_are_nobodys_children(small):
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not {str(row.pid) for row in small.status()}.intersection(children)


def test_an_agent_on_a_node_finds_its_settings_in_the_environment(small):
    node = small.node("node2")
    code = "import os; from ebpflb.config import load_settings; s = load_settings({}, os.environ); "
    code += "print(s.node_name, s.manifests, s.cgroup_root, s.bpffs_root, *s.host_devices)"
    shown = node.exec([sys.executable, "-c", code]).stdout.split()
    assert shown == ["node2", str(node.manifests), str(node.cgroup), str(node.bpffs), "eth0"]


def test_pins_have_a_file_system_of_their_own(small):
    node = small.node("node1")
    assert os.stat(node.bpffs).st_dev != os.stat(node.manifests).st_dev
    shown = subprocess.run(["stat", "-f", "-c%T", node.bpffs], capture_output=True, check=True)
    assert shown.stdout.strip() == b"bpf_fs"


def test_a_failed_command_is_told_with_its_output(small):
    with pytest.raises(subprocess.CalledProcessError) as raised:
        small.client.exec(["sh", "-c", "echo why >&2; exit 3"])
    assert raised.value.returncode == 3
    assert raised.value.__notes__ == ["on client: why"]
    assert small.client.exec(["false"], check=False).returncode == 1


def test_who_is_not_there_is_told(small):
    with pytest.raises(ConfigError, match="has no 'pod-9-9', only underlay, node1"):
        small.pod("pod-9-9")
    with pytest.raises(ConfigError, match="node1 is a node, not a pod"):
        small.pod("node1")
    with pytest.raises(ConfigError, match="pod-1-1 is a pod, not a node"):
        small.node("pod-1-1")


def test_manifests_are_the_same_on_every_node(small):
    contents = []
    for node in small.nodes:
        objects = [
            each
            for path in sorted(node.manifests.iterdir())
            for each in yaml.safe_load_all(path.read_text())
        ]
        contents.append(objects)
    assert contents[0] == contents[1]
    kinds = [each["kind"] for each in contents[0]]
    assert [kinds.count(kind) for kind in ("Node", "Service", "EndpointSlice")] == [2, 4, 8]


def test_manifests_can_be_written_applied_and_removed(small, tmp_path):
    made = small.service(ServiceSpec("mine", 7), [small.pod("pod-2-1")])
    assert made[0]["spec"]["clusterIPs"] == [small.cluster_ip(7, 4), small.cluster_ip(7, 6)]
    assert made[1]["endpoints"][0]["addresses"] == [small.pod("pod-2-1").ipv4]
    small.write_manifests(made, "mine.yaml")
    (tmp_path / "other.json").write_text("{}")
    assert small.apply(tmp_path) == ["other.json"]
    for node in small.nodes:
        assert list(yaml.safe_load_all((node.manifests / "mine.yaml").read_text())) == made
        assert (node.manifests / "other.json").read_text() == "{}"
    small.remove_manifests("mine.yaml")
    small.remove_manifests("other.json")
    small.remove_manifests("other.json")
    assert sorted(os.listdir(small.node("node1").manifests)) == ["examples.yaml", "nodes.yaml"]


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_load_counts_who_answered(small, protocol):
    for address in small.pod("pod-2-1").addresses:
        result = small.node("node1").load(address, 8080, count=40, protocol=protocol)
        assert (result.ok, result.failed, result.pods) == (40, 0, {"pod-2-1": 40})


def test_a_load_notices_the_end_of_a_pod(name):
    with Lab.up(LabConfig(name, pods=1)) as lab:
        target = lab.pod("pod-2-1")
        held = {"exchanges": 0, "count": 5, "workers": 5, "interval": 0.02}
        with (
            lab.pod("pod-1-1").start_load(target.ipv4, 8080, **held) as open_ones,
            lab.client.start_load(lab.node("node1").ipv4, 8080, rate=50) as refused,
        ):
            time.sleep(0.2)
            (pid,) = cgroups.processes(target.cgroup)
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
            result = open_ones.stop()
            assert set(refused.stop().errors) == {"refused"}
        assert result.failed == 5
        assert set(result.errors) <= {"closed", "reset"}
        assert all(each.exchanges for each in result.connections)
        states = {row.name: row.state for row in lab.status()}
        assert states["pod-2-1"] == "server ended"
        assert ebpflb_lab("status", "--name", name).returncode == 1


def test_two_labs_are_up_at_once_with_different_addresses(small, name):
    with Lab.up(LabConfig(name, nodes=1, pods=1)) as other:
        assert set(other.client.addresses).isdisjoint(small.client.addresses)
        assert ask(other.node("node1"), other.pod("pod-1-1").ipv4, "TCP")["pod"] == "pod-1-1"
    assert ask(small.node("node1"), small.pod("pod-2-1").ipv6, "UDP")["pod"] == "pod-2-1"


def test_a_name_is_given_once(small):
    with pytest.raises(ConfigError, match=rf"lab '{small.name}' exists: .*down --name"):
        Lab.up(small.config)
    assert small.is_whole()


def test_what_has_the_name_but_is_no_labs_is_not_touched(name):
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
    with lab.client.namespace.open():  # or its number might be given again
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
    assert ebpflb_lab("down", "--name", name).stdout == f"lab '{name}' was not up\n"
    with pytest.raises(ConfigError, match=r"node1: lab .* is down"):
        lab.node("node1").exec(["true"])


def test_down_ends_all_that_was_started_inside(name):
    lab = Lab.up(LabConfig(name, nodes=1, pods=1))
    children = [
        lab.node("node1").popen(["sleep", "100"]),
        lab.pod("pod-1-1").popen(["sh", "-c", "env -i sleep 100 & wait"]),
        lab.client.popen(["sh", "-c", "setsid -f sleep 100; sleep 100"]),
    ]
    time.sleep(0.2)
    running = cgroups.processes(Path(cgroup_root(), cgroups.TOP, name))
    lab.down()
    # A shell may have outlived its child just long enough to say so: 128 + 9.
    assert {child.wait(5) for child in children} <= {-signal.SIGKILL, 128 + signal.SIGKILL}
    assert len(running) == 7
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


def test_a_lab_is_not_taken_down_from_inside(small):
    code = f"from ebpflb.lab.teardown import take_down; take_down({small.name!r})"
    done = small.node("node1").exec([sys.executable, "-c", code], check=False)
    assert "runs inside lab" in done.stderr
    assert small.is_whole()


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
Lab.up(LabConfig({name!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert leftovers()
    shown = ebpflb_lab("status", "--name", name)
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
    monkeypatch.setattr("ebpflb.lab.cluster._REACH_TIMEOUT", 2.0)
    with pytest.raises(ProbeError, match="paths fail; node1 to pod-2-1"):
        Lab.up(LabConfig(name, family=Stack.IPV4))


def test_a_refused_command_is_named(name, monkeypatch):
    lines = ["link set lo up", "link set x up"]
    monkeypatch.setattr("ebpflb.lab.network.commands", lambda *_: lines)
    with pytest.raises(ProbeError, match=rf"{name}-underlay: ip link set x up: Cannot find device"):
        Lab.up(LabConfig(name))


def test_the_command_line_from_up_to_down(name, tmp_path):
    up = ebpflb_lab("up", "--name", name, "--nodes", "1", "--pods", "1", "-o", "json")
    (shown,) = json.loads(up.stdout)
    assert (shown["name"], shown["complete"]) == (name, True)
    assert [row["name"] for row in shown["members"]] == ["underlay", "node1", "pod-1-1", "client"]
    again = ebpflb_lab("up", "--name", name)
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
    done = ebpflb_lab(*inside)
    assert done.returncode == 7
    assert shown["members"][2]["addresses"][0] in done.stdout
    missing = ebpflb_lab("exec", "--name", name, "node1", "no-such-command")
    assert (missing.returncode, missing.stderr) == (
        1,
        "Error: no-such-command: No such file or directory\n",
    )

    (tmp_path / "more.yaml").write_text("---\n")
    assert ebpflb_lab("apply", "--name", name, str(tmp_path)).stdout == "more.yaml: on node1\n"
    status = ebpflb_lab("status", "--name", name)
    assert (status.returncode, status.stdout.count(" up\n")) == (0, 4)
    assert ebpflb_lab("down", "--name", name).stdout == f"lab '{name}' is down\n"
    assert ebpflb_lab("status", "--name", name).returncode == 1

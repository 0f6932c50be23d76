# SPDX-License-Identifier: Apache-2.0
"""A running lab: which members reach each other, and what each one contains."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ebpflb.errors import ConfigError
from ebpflb.lab import Cni, Lab, LabConfig, Stack, build, processes
from ebpflb.lab.build import take_down
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.questions import SILENT, fate
from tests.e2e.lab.leftovers import NAME, lab_command, leftovers

# Longer than the second after which TCP repeats a SYN.
RETRANSMITTED = 1.5
SMALL = f"small-{os.getpid()}"


@pytest.fixture
def name():
    """The name of a lab that the test builds; deleted in any case."""
    take_down(NAME)
    yield NAME
    take_down(NAME)
    assert leftovers() == []


@pytest.fixture(scope="module")
def small():
    """A lab that no test changes for others: one node with one pod, another with one."""
    take_down(SMALL)
    with Lab.up(LabConfig(SMALL, nodes=2, pods=1)) as lab:
        yield lab
    assert leftovers(SMALL) == []


def ask(member, address, protocol):
    """What the pod at an address reports about a request from a member."""
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with member.entered():
        sock = socket.socket(family, kind)
    with sock:
        sock.settimeout(20)
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
            page = ["curl", "-sS", "-m60", "--data-binary", "@-", f"http://{host}:8080/echo"]
            done = lab.pod("pod-1-1").exec(page, input="x" * 1_000_000)
            assert len(done.stdout) == 1_000_000


def test_an_address_of_nobody_is_silent(small):
    for ranges in small.layout.ranges:
        nobody = str(ranges.external()[9])
        # connect() may miss what is said to its first packet, not what is said to the next.
        assert fate(small.client, nobody, 80, seconds=RETRANSMITTED) == SILENT


def test_pods_reach_the_addresses_of_both_nodes(small):
    for node in small.nodes:
        for address in node.addresses:
            build.wait_reachable([build.Attempt(small.pod("pod-1-1"), address, 9)], 20)


def test_the_client_is_outside(small):
    result = small.client.load(small.pod("pod-1-1").ipv4, 8080, count=1, timeout=0.2)
    assert result.errors == {"timeout": 1}


def test_commands_run_inside_namespace_and_cgroup(small):
    node = small.node("node1")
    script = "cat /proc/self/cgroup; readlink /proc/self/ns/net; cat"
    done = node.exec(["sh", "-c", script], input="typed\n")
    lines = done.stdout.splitlines()
    assert f"0::/{processes.TOP}/{small.name}/node1" in lines
    assert lines[-2:] == [f"net:[{node.namespace.stat().st_ino}]", "typed"]
    assert os.readlink("/proc/self/ns/net") != lines[-2]


def test_a_node_has_its_pods_in_its_cgroup_and_no_others(small):
    status = {row.name: row.pid for row in small.status()}
    for node, pod in (("node1", "pod-1-1"), ("node2", "pod-2-1")):
        assert processes.in_cgroup(small.node(node).cgroup) == {status[pod]}


def test_pods_are_nobodys_children(small):
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not {str(row.pid) for row in small.status()}.intersection(children)


def test_an_agent_on_a_node_finds_its_settings_in_the_environment(small):
    node = small.node("node2")
    code = "import os; from ebpflb.config.settings import load_settings; "
    code += "s = load_settings({}, os.environ); "
    code += "print(s.node_name, s.manifests, s.cgroup_root, s.bpffs_root, *s.cluster_cidr)"
    shown = node.exec([sys.executable, "-c", code]).stdout.split()
    paths = (node.manifests, node.cgroup, node.bpffs)
    assert shown == ["node2", *map(str, paths), *node.cluster_cidr]


def test_pins_have_a_file_system_of_their_own(small):
    node = small.node("node1")
    assert os.stat(node.bpffs).st_dev != os.stat(node.manifests).st_dev
    shown = subprocess.run(["stat", "-f", "-c%T", node.bpffs], capture_output=True, check=True)
    assert shown.stdout.strip() == b"bpf_fs"


def test_a_failed_command_is_reported_with_its_output(small):
    with pytest.raises(subprocess.CalledProcessError) as raised:
        small.client.exec(["sh", "-c", "echo why >&2; exit 3"])
    assert raised.value.returncode == 3
    assert raised.value.__notes__ == ["on client: why"]
    assert small.client.exec(["false"], check=False).returncode == 1


def test_who_is_not_there_is_reported(small):
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
            (pid,) = processes.in_cgroup(target.cgroup)
            os.kill(pid, signal.SIGKILL)
            result = open_ones.result(60)
            assert set(refused.stop().errors) == {"refused"}
        assert result.failed == 5
        assert set(result.errors) <= {"closed", "reset"}
        assert all(each.exchanges for each in result.connections)
        states = {row.name: row.state for row in lab.status()}
        assert states["pod-2-1"] == "server ended"
        assert lab_command("status", "--name", name).returncode == 1


def test_two_labs_are_up_at_once_with_different_addresses(small, name):
    with Lab.up(LabConfig(name, nodes=1, pods=1)) as other:
        assert set(other.client.addresses).isdisjoint(small.client.addresses)
        assert ask(other.node("node1"), other.pod("pod-1-1").ipv4, "TCP")["pod"] == "pod-1-1"
    assert ask(small.node("node1"), small.pod("pod-2-1").ipv6, "UDP")["pod"] == "pod-2-1"


def test_a_name_is_given_once(small):
    with pytest.raises(ConfigError, match=rf"lab '{small.name}' exists: .*down --name"):
        Lab.up(small.config)
    assert small.is_whole()


def test_a_lab_is_not_taken_down_from_inside(small):
    code = f"from ebpflb.lab.build import take_down; take_down({small.name!r})"
    done = small.node("node1").exec([sys.executable, "-c", code], check=False)
    assert "runs inside lab" in done.stderr
    assert small.is_whole()

# SPDX-License-Identifier: Apache-2.0
"""`ebpflb cleanup` removes everything of ebpflb from a node, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ebpflb.lab import Lab, LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.loads import none_fails_directly
from tests.e2e.harness.questions import PROTOCOLS, differing, everywhere, fate
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until

PORT = 80
WAYS = ("tcx", "clsact")


@pytest.fixture(params=WAYS)
def way(request) -> str:
    """How the programs are attached."""
    found: str = request.param
    return found


@pytest.fixture
def served(own_lab, tmp_path, way) -> Iterator[ServiceSpec]:
    """A Service that the first node serves, after its agent has exited."""
    with started(own_lab, tmp_path, ["--attach", way], ["node1"]) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        assert cluster.agents["node1"].stop() == 0
        assert differing(everywhere(cluster, spec), own_lab.pods) == {}
        yield spec


def traces(node: LabNode) -> list[str]:
    """What is left of ebpflb on a node: pins, qdiscs, filters."""
    left = [str(path) for path in node.bpffs.rglob("*")] if node.bpffs.exists() else []
    for device in ("eth0", "veth-1-1", "veth-1-2"):
        shown = node.exec(["tc", "qdisc", "show", "dev", device]).stdout
        left += [line for line in shown.splitlines() if "clsact" in line]
    return left


def is_served(lab: Lab, spec: ServiceSpec) -> bool:
    """Whether any client still gets a reply."""
    node = lab.node("node1")
    asked = []
    for version in lab.config.family.versions:
        service = (lab.cluster_ip(spec.number, version), PORT)
        outside = (address_of(node, version), spec.node_port)
        asked += [(lab.pod("pod-1-1"), service), (node, service), (lab.client, outside)]
    return any(
        fate(member, *place, protocol, seconds=0.2).startswith("pod-")
        for member, place in asked
        for protocol in PROTOCOLS
    )


def test_cleanup_removes_everything_and_can_be_repeated(own_lab, served, way):
    node = own_lab.node("node1")
    assert len(traces(node)) > 30
    # While the kernel removes a clsact qdisc, it drops packets sent on the device.
    with none_fails_directly(own_lab, only="tcp" if way == "clsact" else ""):
        removed = json.loads(ebpflb(node, "cleanup", "-o", "json").stdout)
    assert {f"{way} ingress eth0", f"{way} egress veth-1-2"} <= set(removed["hooks"])
    assert traces(node) == []
    assert not is_served(own_lab, served)
    again = ebpflb(node, "cleanup")
    assert (again.returncode, again.stdout) == (0, "nothing to remove\n")


def is_left_alone(lab: Lab, address: str, port: int) -> bool:
    """Whether a new connection from outside reaches no pod."""
    return not fate(lab.client, address, port, "tcp", seconds=0.2).startswith("pod-")


@pytest.mark.parametrize("version", [4, 6])
def test_a_drain_lets_connections_end(own_lab, served, version: int):
    node = own_lab.node("node1")
    place = (address_of(node, version), served.node_port)
    with connected(own_lab.client, *place) as connection:
        pod = exchange(connection)
        command = [sys.executable, "-m", "ebpflb", "cleanup", "--drain=60"]
        with node.popen(command, stdout=subprocess.PIPE, text=True) as cleanup:
            wait_until(lambda: is_left_alone(own_lab, *place), "left alone")
            assert exchange(connection) == pod
            assert cleanup.poll() is None
            connection.close()
            assert cleanup.wait(60) == 0
    assert traces(node) == []

# SPDX-License-Identifier: Apache-2.0
"""XDP at a node's uplink: forwarded packets leave from there, in driver or generic mode.

The lab's wires are veths. Their ends fill in checksums, and receive what XDP at the other end
sends.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachType, ProgType, XdpFlag
from ebpflb.lab import Lab, LabNode
from ebpflb.lab.member import NodeAgent
from ebpflb.lab.offloads import wire
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS
from tests.e2e.harness.sockets import connected, echo, exchange
from tests.e2e.harness.waiting import wait_until

POD = "pod-2-1"
SENT = 'ebpflb_xdp_packets_total{result="sent"}'
BODY = bytes(range(256)) * 400
# A program that accepts every packet.
PASS = bytes([0xB7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])


@pytest.fixture(scope="module")
def wired(own_lab: Lab) -> Lab:
    """A lab whose veth ends behave like network cards."""
    wire(own_lab)
    return own_lab


@pytest.fixture(scope="module")
def edge(wired: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """XDP in the driver of each node's uplink."""
    with started(wired, tmp_path_factory.mktemp("edge"), ["--xdp", "native"]) as cluster:
        yield cluster
        assert all(agent.is_running() for agent in cluster.agents.values())


@contextmanager
def instead(cluster: Cluster, options: list[str], logs: Path) -> Iterator[LabNode]:
    """The first node's agent has other options inside the block."""
    before = agents(cluster)["node1"]
    logs.mkdir(exist_ok=True)
    replace(cluster, NodeAgent(before.node, logs / "agent.log", options))
    try:
        yield before.node
    finally:
        replace(cluster, before)


def replace(cluster: Cluster, agent: NodeAgent) -> None:
    running = agents(cluster)
    running["node1"].stop()
    running["node1"] = agent
    agent.start()
    agent.wait_in_sync()


def agents(cluster: Cluster) -> dict[str, NodeAgent]:
    assert isinstance(cluster.agents, dict)
    return cluster.agents


def ways(node: LabNode) -> dict[str, str]:
    """How each uplink runs XDP, or why it does not."""
    return {each["name"]: each["mode"] or each["why"] for each in status(node)["agent"]["xdp"]}


def attached(node: LabNode) -> str:
    """The XDP state of the uplink according to the kernel."""
    (link,) = json.loads(node.exec(["ip", "-j", "link", "show", "dev", "eth0"]).stdout)
    modes = {1: "native", 2: "generic"}
    return modes[link["xdp"]["mode"]] if "xdp" in link else ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_leaves_again_is_sent_from_xdp(edge: Cluster, protocol: str):
    lab, node = edge.lab, edge.lab.node("node1")
    spec = edge.serve(edge.new(), [lab.pod(POD)])
    for version in edge.versions:
        before = metric(node, SENT)
        with connected(lab.client, address_of(node, version), spec.node_port, protocol) as made:
            assert {exchange(made) for _ in range(20)} == {POD}
        # Some take the stack, to resolve neighbours.
        wait_until(partial(has_sent, node, before + 30), "the agent tells of them")


def has_sent(node: LabNode, packets: float) -> bool:
    return metric(node, SENT) >= packets


def test_bulk_arrives_as_it_was_sent(edge: Cluster):
    lab = edge.lab
    spec = edge.serve(edge.new(), [lab.pod(POD)])
    for version in edge.versions:
        with connected(lab.client, address_of(lab.node("node1"), version), spec.node_port) as bulk:
            assert echo(bulk, BODY) == BODY


def test_backends_here_and_elsewhere_are_served_together(edge: Cluster):
    spec = edge.serve(edge.new(), edge.lab.pods)
    with none_fails(edge, spec, held=True) as loads:
        node = edge.lab.node("node1")
        before = metric(node, SENT)
        wait_until(partial(has_sent, node, before + 200), "packets are sent from XDP")
        for pod in edge.lab.pods:
            loads.wait_for(pod)
    assert all(len(each.pods) > 1 for each in loads.held())


def test_status_and_explain_name_it(edge: Cluster):
    lab, node = edge.lab, edge.lab.node("node1")
    spec = edge.serve(edge.new(), [lab.pod(POD)])
    assert ways(node) == {"eth0": "native"}
    assert attached(node) == "native"
    assert "XDP at eth0: native" in ebpflb(node, "status").stdout
    assert "lb_xdp is attached (native)" in ebpflb(node, "doctor").stdout
    assert ("xdp native", "eth0") in {
        (each["hook"], each["place"]) for each in status(node)["loaded"]["hooks"]
    }
    place = f"{node.ipv4}:{spec.node_port}"
    said = ebpflb(node, "explain", lab.client.ipv4, place).stdout
    assert "XDP, or tc ingress of eth0" in said


SWITCHES = {
    "off": {},
    "generic": {"eth0": "generic"},
    "auto": {"eth0": "a veth, which XDP would slow down"},
}


@pytest.mark.parametrize("mode", SWITCHES)
def test_a_switch_of_the_mode_costs_no_connection(edge: Cluster, tmp_path: Path, mode: str):
    """Drivers, including veth, lose the packets in their rings when XDP is attached or detached."""
    spec = edge.serve(edge.new(), edge.lab.pods)
    with none_fails(edge, spec, held=True, only="tcp"):
        with instead(edge, ["--xdp", mode], tmp_path) as node:
            assert ways(node) == SWITCHES[mode]
            assert attached(node) == ("generic" if mode == "generic" else "")
        assert attached(node) == "native"


def test_a_kill_costs_no_connection(edge: Cluster):
    agent = edge.agents["node1"]
    spec = edge.serve(edge.new(), edge.lab.pods)
    with none_fails(edge, spec, held=True):
        agent.kill()
        assert attached(agent.node) == "native"
        agent.start()
        agent.wait_in_sync()


def test_other_devices_are_left_alone(edge: Cluster, tmp_path: Path):
    options = ["--xdp", "native", "--xdp-devices", "en*,eth1"]
    with instead(edge, options, tmp_path) as node:
        assert ways(node) == {"eth0": "not named by the option xdp-devices"}


@contextmanager
def foreign_program(node: LabNode) -> Iterator[None]:
    """Another product's XDP program at the uplink, which accepts every packet."""
    with ExitStack() as stack:
        program = libbpf.prog_load(ProgType.XDP, "foreign", PASS, AttachType.XDP)
        stack.callback(os.close, program)
        with node.entered():
            ifindex = socket.if_nametoindex("eth0")
            link = libbpf.link_create(program, ifindex, AttachType.XDP, XdpFlag.NATIVE)
        stack.callback(os.close, link)
        yield


def test_a_foreign_program_stays(edge: Cluster, tmp_path: Path):
    spec = edge.serve(edge.new(), edge.lab.pods)
    off, native = tmp_path / "off", tmp_path / "native"
    with (
        instead(edge, ["--xdp", "off"], off) as node,
        foreign_program(node),
        instead(edge, ["--xdp", "native"], native),
        none_fails(edge, spec),
    ):
        assert ways(node) == {"eth0": "another XDP program is attached"}

# SPDX-License-Identifier: Apache-2.0
"""Nodes without DSR, or unreachable through tunnels, cost no connection.

All pods are on the second node; clients reach them by the first one.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import NodeAgent
from ebpflb.model.address import Address, format_address
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, answers
from tests.e2e.harness.waiting import wait_until_equal

DSR = ("--dsr", "annotated")
PORT = 6089
# A lost reply is noticed within a period of 10 s; two retries follow after a second each.
NOTICE_SECONDS = 120.0
SILENT = 'ebpflb_dsr_peers{state="unreachable"}'
ANSWERING = 'ebpflb_dsr_peers{state="reachable"}'
FIREWALL = """
add table bridge firewall
add chain bridge firewall forward {{ type filter hook forward priority 0; }}
add rule bridge firewall forward {match} udp dport {port} drop
"""


class Edge:
    """The Service, and how the first node forwards its traffic."""

    def __init__(self, cluster: Cluster, spec: ServiceSpec) -> None:
        self.cluster = cluster
        self.lab: Lab = cluster.lab
        self.spec = spec
        self.node = self.lab.node("node1")

    def tunneled(self) -> set[int]:
        """The IP versions in which pods are reached through tunnels."""
        pods = pinned_maps(self.node)["lb_pod_nodes"].items()
        return {6 if ":" in format_address(Address(pod)) else 4 for pod, _ in pods}

    def clients(self, version: int, protocol: str = "tcp") -> set[str]:
        """The clients that the pods see."""
        place = address_of(self.node, version), self.spec.node_port
        found = answers(self.lab.client, *place, protocol, 10)
        return {str(each.get("client_address") or each["error"]) for each in found}

    def await_tunnels(self, *versions: int) -> None:
        """The pods of these IP versions see the client, the others the first node.

        An older UDP flow with the same port would keep its old path.
        """
        wait_until_equal(self.tunneled, set(versions), NOTICE_SECONDS)
        for version in self.cluster.versions:
            expected = {address_of(self.lab.client if version in versions else self.node, version)}
            for protocol in PROTOCOLS:
                wait_until_equal(partial(self.clients, version, protocol), expected)

    def troubles(self) -> list[Mapping[str, str]]:
        """The problems with DSR that doctor reports."""
        found = json.loads(ebpflb(self.node, "doctor", "-o", "json").stdout)["findings"]
        return [each for each in found if (each["check"], each["severity"]) == ("dsr", "warning")]

    def assert_told(self, *families: str) -> None:
        """The second node is reported as not answering in these families."""
        asked = len(self.cluster.versions)
        wait_until_equal(partial(metric, self.node, SILENT), len(families))
        assert metric(self.node, ANSWERING) == asked - len(families)
        peers = status(self.node)["agent"]["dsr_peers"]
        assert (peers["asked"], peers["reachable"]) == (asked, asked - len(families))
        assert [(each["node"], each["family"]) for each in peers["unreachable"]] == [
            ("node2", family) for family in families
        ]
        what = f"node2 ({', '.join(families)}); their pods get SNAT instead of DSR"
        assert [what in each["what"] for each in self.troubles()] == [True] * bool(families)

    @contextmanager
    def firewall(self, match: str = "") -> Iterator[None]:
        """A firewall between the nodes that drops tunnel traffic."""
        rules = FIREWALL.format(match=match, port=PORT)
        self.lab.underlay.exec(["nft", "-f", "-"], input=rules)
        try:
            yield
        finally:
            self.lab.underlay.exec(["nft", "delete", "table", "bridge", "firewall"])


@pytest.fixture(scope="module")
def cluster(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(own_lab, tmp_path_factory.mktemp("edge"), DSR, nodes=["node1"]) as cluster:
        yield cluster
        assert all(agent.is_running() for agent in cluster.agents.values())


@pytest.fixture
def edge(cluster: Cluster) -> Iterator[Edge]:
    spec = cluster.new(annotations={"dsr": "true"})
    cluster.serve(spec, cluster.lab.pods_on("node2"))
    yield Edge(cluster, spec)
    cluster.remove(spec)


@contextmanager
def other(lab: Lab, log: Path, *options: str) -> Iterator[NodeAgent]:
    """An agent on the second node; its programs are removed at the end."""
    agent = NodeAgent(lab.node("node2"), log / "node2.log", options)
    agent.start()
    try:
        agent.wait_in_sync()
        yield agent
    finally:
        agent.kill()
        ebpflb(lab.node("node2"), "cleanup")


def test_a_node_without_dsr_gets_no_tunnels(edge: Edge, tmp_path: Path):
    with other(edge.lab, tmp_path, "--dsr", "off"):
        edge.assert_told("IPv4", "IPv6")
        edge.await_tunnels()
        (trouble,) = edge.troubles()
        assert trouble["what"].startswith("1 node does not answer on UDP port 6089: node2 ")
        said = ebpflb(edge.node, "status").stdout
        assert "  0 of 2 nodes answer there (a node counts once for each family)\n" in said
        place = f"{edge.node.ipv4}:{edge.spec.node_port}"
        said = ebpflb(edge.node, "explain", edge.lab.client.ipv4, place).stdout
        assert "no tunnel leads to its node (DSR; see `ebpflb doctor`)" in " ".join(said.split())
    with other(edge.lab, tmp_path, *DSR), none_fails(edge.cluster, edge.spec):
        edge.await_tunnels(4, 6)
        edge.assert_told()


def test_a_node_without_an_agent_gets_no_tunnels(edge: Edge):
    edge.assert_told("IPv4", "IPv6")
    edge.await_tunnels()


def test_a_firewall_for_one_family_ends_the_tunnels_of_that_family_only(edge: Edge, tmp_path: Path):
    with other(edge.lab, tmp_path, *DSR):
        edge.await_tunnels(4, 6)
        with edge.firewall("ether type ip6"):
            wait_until_equal(edge.tunneled, {4}, NOTICE_SECONDS)
            with none_fails(edge.cluster, edge.spec):
                edge.await_tunnels(4)
                edge.assert_told("IPv6")
        edge.await_tunnels(4, 6)


def test_tunnels_to_a_node_outlive_its_agent(edge: Edge, tmp_path: Path):
    with other(edge.lab, tmp_path, *DSR) as agent:
        edge.await_tunnels(4, 6)
        agent.kill()
        wait_until_equal(partial(metric, edge.node, ANSWERING), 2)
        edge.await_tunnels(4, 6)
        edge.assert_told()


def test_pods_see_the_client_while_their_nodes_agent_restarts(edge: Edge, tmp_path: Path):
    (agent,) = edge.cluster.agents.values()
    with other(edge.lab, tmp_path, *DSR):
        edge.await_tunnels(4, 6)
        agent.kill()
        agent.start()
        seen: set[str] = set()
        while "nodes accept DSR packets" not in agent.said():
            seen |= edge.clients(4) | edge.clients(6)
            assert agent.is_running()
        assert seen <= {edge.lab.client.ipv4, edge.lab.client.ipv6}
        edge.await_tunnels(4, 6)


def test_the_log_names_both_families(edge: Edge, tmp_path: Path):
    (agent,) = edge.cluster.agents.values()
    with other(edge.lab, tmp_path, *DSR), edge.firewall():
        wait_until_equal(edge.tunneled, set(), NOTICE_SECONDS)
        edge.assert_told("IPv4", "IPv6")
    lines = [each for each in agent.said().splitlines() if "do not answer on the DSR port" in each]
    # In one line, unless one family had answered before the other.
    assert all(any(f"node2 ({each})" in line for line in lines[-2:]) for each in ("IPv4", "IPv6"))

# SPDX-License-Identifier: Apache-2.0
"""Every way that a packet can take to a Service; each test is a column of docs/compatibility.md."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.workloads import Load
from tests.cni.row import Cni
from tests.cni.subjects import HOST_PORT, NODES, SPACE, Family, Protocol, Subjects
from tests.e2e.harness.waiting import wait_until

pytestmark = pytest.mark.slow

POLICY_SECONDS = 30

each_family = pytest.mark.parametrize("family", ["IPv4", "IPv6"])
each_protocol = pytest.mark.parametrize("protocol", ["TCP", "UDP"])
each_server = pytest.mark.parametrize("node", NODES, ids=["here", "elsewhere"])


@each_server
@each_protocol
@each_family
def test_pod_to_cluster_ip(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """Pod to ClusterIP."""
    answer = subjects.ask("asker-node1", protocol, subjects.cluster_ip(f"server-{node}", family))
    assert answer
    assert answer["pod"] == f"server-{node}"
    assert answer["client_address"] == subjects.pod_ip("asker-node1", family)


@each_protocol
@each_family
def test_pod_to_itself(subjects: Subjects, family: Family, protocol: Protocol):
    """Pod to its own Service."""
    address = subjects.cluster_ip("server-node1", family)
    answer = subjects.ask("server-node1", protocol, address)
    assert answer
    assert answer["pod"] == "server-node1"


@each_server
@each_protocol
@each_family
def test_host_to_cluster_ip(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """Host to ClusterIP."""
    address = subjects.cluster_ip(f"server-{node}", family)
    answer = subjects.ask(subjects.node("node1"), protocol, address)
    assert answer
    assert answer["pod"] == f"server-{node}"


@each_server
@each_protocol
@each_family
def test_node_port(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """Outside to NodePort."""
    client = subjects.cluster.client
    address = subjects.node_ip("node1", family)
    port = subjects.node_port(f"server-{node}", protocol)
    answer = subjects.ask(client, protocol, address, port)
    assert answer
    assert answer["pod"] == f"server-{node}"
    sees_the_client = answer["client_address"] == subjects.client_ip(family)
    assert sees_the_client == (node == "node1")


@each_protocol
@each_family
def test_node_port_local(subjects: Subjects, family: Family, protocol: Protocol):
    """Outside to NodePort, policy Local."""
    client = subjects.cluster.client
    port = subjects.node_port("local-node1", protocol)
    answer = subjects.ask(client, protocol, subjects.node_ip("node1", family), port)
    assert answer
    assert answer["client_address"] == subjects.client_ip(family)
    assert not subjects.ask(client, protocol, subjects.node_ip("node2", family), port)


@each_server
@each_protocol
@each_family
def test_virtual_ip(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """Outside and pod to external and load-balancer IP."""
    for client in (subjects.cluster.client, "asker-node1"):
        for address in (subjects.external_ip(node, family), subjects.balanced_ip(node, family)):
            answer = subjects.ask(client, protocol, address)
            assert answer, (client, address)
            assert answer["pod"] == f"server-{node}"


@each_server
@each_protocol
@each_family
def test_pod_to_node_port(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """Pod to NodePort of each node."""
    port = subjects.node_port(f"server-{node}", protocol)
    for asked in NODES:
        answer = subjects.ask("asker-node1", protocol, subjects.node_ip(asked, family), port)
        assert answer, asked
        assert answer["pod"] == f"server-{node}"


@each_server
@each_family
def test_large_datagram(subjects: Subjects, family: Family, node: str):
    """UDP in fragments."""
    address = subjects.cluster_ip(f"server-{node}", family)
    for client in ("asker-node1", subjects.node("node1")):
        assert subjects.ask_with_large_datagram(client, address), client
    port = subjects.node_port(f"server-{node}", "UDP")
    address = subjects.node_ip("node1", family)
    # Nobody on the way fragments IPv6: the first one tells the client the MTU of the pods.
    tries = range(2 if family == "IPv6" else 1)
    outside = subjects.cluster.client
    assert any(subjects.ask_with_large_datagram(outside, address, port) for _ in tries)


@each_server
@each_family
def test_full_segments(subjects: Subjects, family: Family, node: str):
    """TCP in full packets."""
    address = subjects.cluster_ip(f"server-{node}", family)
    for client in ("asker-node1", subjects.node("node1")):
        assert subjects.exchanges_much(client, address), client
    port = subjects.node_port(f"server-{node}", "TCP")
    address = subjects.node_ip("node1", family)
    assert subjects.exchanges_much(subjects.cluster.client, address, port)


@pytest.mark.parametrize("node", NODES)
def test_dns(subjects: Subjects, node: str):
    """DNS by CoreDNS."""
    answer = subjects.ask(f"asker-{node}", "TCP", f"server-node1.{SPACE}")
    assert answer
    assert answer["pod"] == "server-node1"


@each_family
def test_host_port(subjects: Subjects, family: Family):
    """hostPort."""
    for client in (subjects.cluster.client, "asker-node2", subjects.node("node2")):
        answer = subjects.ask(client, "TCP", subjects.node_ip("node1", family), HOST_PORT)
        assert answer, client
        assert answer["pod"] == "host-port"


@contextmanager
def network_policy(subjects: Subjects, spec: dict[str, Any]) -> Iterator[None]:
    document = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "paths"},
        "spec": spec,
    }
    workloads.apply(subjects.cluster, SPACE, [document])
    yield
    subjects.cluster.kubectl("-n", SPACE, "delete", "networkpolicy/paths")


def app(name: str) -> dict[str, Any]:
    return {"matchLabels": {"app": name}}


def wait_until_denied(subjects: Subjects, client: Any, protocol: Protocol, *target: Any) -> None:
    wait_until(
        lambda: not subjects.ask(client, protocol, *target),
        f"{client} {protocol} {target} denied",
        POLICY_SECONDS,
    )


@each_server
@each_protocol
@each_family
def test_network_policy(subjects: Subjects, family: Family, protocol: Protocol, node: str):
    """NetworkPolicy through a Service."""
    server, address = f"server-{node}", subjects.cluster_ip(f"server-{node}", family)
    port = subjects.node_port(server, protocol)
    entry = (subjects.node_ip("node1", family), port)
    only_first = {"from": [{"podSelector": app("asker-node1")}]}
    spec = {"podSelector": app(server), "policyTypes": ["Ingress"], "ingress": [only_first]}
    with network_policy(subjects, spec):
        wait_until_denied(subjects, "asker-node2", protocol, address)
        wait_until_denied(subjects, subjects.cluster.client, protocol, *entry)
        assert subjects.ask("asker-node1", protocol, address)

    other = "server-node1" if node == "node2" else "server-node2"
    to_other = {"to": [{"podSelector": app(other)}]}
    spec = {"podSelector": app("asker-node1"), "policyTypes": ["Egress"], "egress": [to_other]}
    with network_policy(subjects, spec):
        wait_until_denied(subjects, "asker-node1", protocol, address)
        wait_until_denied(subjects, "asker-node1", protocol, *entry)
        assert subjects.ask("asker-node1", protocol, subjects.cluster_ip(other, family))
    assert wait_until(lambda: subjects.ask("asker-node1", protocol, address), "all allowed again")


def test_agent_restart(subjects: Subjects):
    """Agent restart under open connections."""
    cluster = subjects.cluster
    inside = f"http://{subjects.cluster_ip('server-node2', 'IPv4')}"
    port = subjects.node_port("server-node2", "TCP")
    outside = f"http://{subjects.node_ip('node1', 'IPv4')}:{port}"
    running = [
        Load.start(place, url, 4, keep=keep)
        for place, url in ((subjects.node("node1"), inside), (cluster.client, outside))
        for keep in (False, True)
    ]
    cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/ebpflb")
    cluster.control_plane.wait("-n", NAMESPACE, "rollout", "status", "daemonset/ebpflb")
    assert [load.stop()["failures"] for load in running] == [{}] * len(running)


def ask_agents(cluster: Cluster, *command: str) -> Iterator[Any]:
    """What a command says as JSON in each agent's pod; it fails the test if the command fails."""
    label = "--selector=app.kubernetes.io/component=agent"
    for pod in cluster.kubectl("-n", NAMESPACE, "get", "pods", label, "-o", "name").split():
        run = ["exec", pod, "--", "ebpflb", *command, "-o", "json"]
        yield json.loads(cluster.kubectl("-n", NAMESPACE, *run))


def test_doctor(subjects: Subjects):
    """doctor finds nothing."""
    for said in ask_agents(subjects.cluster, "doctor"):
        assert said["healthy"]


def test_devices(subjects: Subjects, cni: Cni):
    """Devices classified."""
    for said in ask_agents(subjects.cluster, "status"):
        kinds = {
            hook["place"]: hook["program"].removeprefix("lb_").partition("_")[0]
            for hook in said["loaded"]["hooks"]
            if hook["hook"].startswith(("tcx", "clsact"))
        }
        for patterns, found in (
            (cni.pods, [name for name, kind in kinds.items() if kind == "pod"]),
            (cni.hosts, [name for name, kind in kinds.items() if kind != "pod"]),
        ):
            assert not [name for name in found if not matches(name, *patterns)]
            for pattern in patterns:
                assert [name for name in found if matches(name, pattern)], (pattern, kinds)


def matches(name: str, *patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

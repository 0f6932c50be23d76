# SPDX-License-Identifier: Apache-2.0
"""A Service with the API server's address does not get the agent's own connections."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ebpflb.dataplane.layout.enums import SocketPriority
from ebpflb.lab import Lab, LabNode
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import status
from tests.e2e.harness.in_force import offered
from tests.e2e.harness.manifest_api import manifest_api
from tests.e2e.harness.questions import Attempt, names, results
from tests.e2e.harness.sockets import LISTENER, exchange, listening, opened, version_of

PORT = 6443


@pytest.fixture(scope="module")
def running(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An agent on the first node, with manifests, so that it does not use an API server."""
    with started(own_lab, tmp_path_factory.mktemp("api"), nodes=["node1"]) as cluster:
        yield cluster


@pytest.fixture
def thief(running: Cluster) -> Iterator[ServiceSpec]:
    """A Service with the client's addresses, at which tests run their API server."""
    lab = running.lab
    spec = replace(running.new("ClusterIP", externalIPs=[*lab.client.addresses]), port=PORT)
    yield running.serve(spec, lab.pods_on("node1"))
    running.clear()


def sockets(stack: ExitStack, node: LabNode, address: str) -> Iterator[socket.socket]:
    """Of a process in the node's cgroup, under the socket LB, and of one outside."""
    version = version_of(address)
    yield stack.enter_context(opened(node, version))
    with node.entered():
        made = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6)
    made.settimeout(5)
    yield stack.enter_context(made)


@pytest.mark.usefixtures("thief")
def test_the_agents_sockets_pass_every_hook_and_no_others_do(running: Cluster):
    lab, node = running.lab, running.lab.node("node1")
    pods = names(lab.pods_on("node1"))
    with listening(lab.client, [*lab.client.addresses], PORT), ExitStack() as stack:
        for address in lab.client.addresses:
            for other in sockets(stack, node, address):
                other.connect((address, PORT))
                assert exchange(other) in pods
            for own in sockets(stack, node, address):
                priority = SocketPriority.LB_SOCKET_OF_AGENT
                own.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
                own.connect((address, PORT))
                assert LISTENER in exchange(own)


def test_a_cluster_ip_is_open_to_the_agent(running: Cluster):
    lab, node = running.lab, running.lab.node("node1")
    spec = running.serve(running.new("ClusterIP"), lab.pods_on("node1"))
    for address in running.cluster_ips(spec):
        with opened(node, version_of(address)) as own:
            priority = SocketPriority.LB_SOCKET_OF_AGENT
            own.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
            own.connect((address, 80))
            assert exchange(own) in names(lab.pods)
    running.clear()


def test_an_agent_that_is_diverted_by_its_own_pins_recovers(running: Cluster, tmp_path: Path):
    lab, node = running.lab, running.lab.node("node1")
    with manifest_api(node, lab.client) as (without_manifests, options):
        place, _, port = options[1].removeprefix("http://").rpartition(":")
        spec = replace(running.new("ClusterIP", externalIPs=[place]), port=int(port))
        running.serve(spec, lab.pods_on("node1"))
        attempt = [Attempt(node, place, int(port), "tcp")]
        (diverted,) = results(attempt).values()
        assert diverted <= names(lab.pods_on("node1"))
        running.agents["node1"].kill()
        options += ["--state-cache-max-age=0"]
        agent = NodeAgent(without_manifests, tmp_path / "agent.log", options)
        try:
            agent.start()
            agent.wait_in_sync()
            assert place not in {each.address for each in offered(node)}
            (told,) = status(node)["agent"]["addresses_refused"]
            assert f"{place} not served at port {port}: an API server has" in told
        finally:
            agent.kill()
    running.clear()

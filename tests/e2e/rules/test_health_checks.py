# SPDX-License-Identifier: Apache-2.0
"""The replies of each node's health check node port to an external load balancer."""

import json
import socket
from dataclasses import replace

import pytest

from ebpflb.lab import LabNode, Member
from tests.e2e.harness.cluster import address_of, started
from tests.e2e.harness.command import status
from tests.e2e.harness.questions import REFUSED, fate, names, pods_at
from tests.e2e.harness.sockets import opened
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.health_check import ask

LOCAL = {"externalTrafficPolicy": "Local"}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def wait_healthy(member: Member, address: str, port: int) -> None:
    wait_until(lambda: ask(member, address, port).status == 200, f"{address} is healthy")


class Checked:
    """A Service whose external policy is Local, and the replies to its health checks."""

    def __init__(self, cluster, port=0):
        spec = cluster.new("LoadBalancer")
        self.cluster = cluster
        self.port = port or 1000 + spec.node_port
        self.spec = replace(spec, spec={**LOCAL, "healthCheckNodePort": self.port})

    def serve(self, pods=(), terminating=(), **spec):
        self.spec = replace(self.spec, spec={**self.spec.spec, **spec})
        self.cluster.serve(self.spec, pods, terminating)

    def said(self) -> dict[str, list[int | str]]:
        """The statuses at each node, in each family."""
        client = self.cluster.lab.client
        return {
            node.name: [
                ask(client, address_of(node, version), self.port).status
                for version in self.cluster.versions
            ]
            for node in self.cluster.nodes
        }

    def wait(self, node1, node2):
        """Return when the nodes reply with this in all families."""
        families = len(self.cluster.versions)
        expected = {"node1": [node1] * families, "node2": [node2] * families}
        wait_until(lambda: self.said() == expected, f"the answers are {expected}")


@pytest.fixture
def checked(cluster):
    return Checked(cluster)


def test_a_node_with_a_pod_is_chosen_and_distinguished(checked, lab):
    checked.serve(lab.pods_on("node1"))
    checked.wait(200, 503)
    node1, node2 = lab.nodes
    for version in checked.cluster.versions:
        answer = ask(lab.client, address_of(node1, version), checked.port, "POST", "/any/path?x")
        name = checked.spec.name
        assert answer.weight == "2"
        assert answer.body == (
            f'{{\n\t"service": {{\n\t\t"namespace": "default",\n\t\t"name": "{name}"\n\t}},\n'
            '\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
        )
        other = ask(lab.client, address_of(node2, version), checked.port)
        assert (other.status, other.weight) == (503, "0")
        assert json.loads(other.body)["localEndpoints"] == 0


def test_pods_come_terminate_and_go(checked, lab):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    checked.serve()
    checked.wait(503, 503)
    checked.serve([first])
    checked.wait(200, 503)
    checked.serve([second], terminating=[first])
    checked.wait(503, 200)
    node = lab.node("node1")
    for version in checked.cluster.versions:
        # Still served where the load balancer has not checked yet.
        place = (address_of(node, version), checked.spec.node_port)
        assert fate(lab.client, *place) == first.name
    checked.serve([second])
    checked.wait(503, 200)
    checked.serve([first, second])
    checked.wait(200, 200)


def test_the_policy_cluster_closes_the_port_and_leaves_the_node_port(checked, lab):
    pods = lab.pods_on("node1")
    checked.serve(pods)
    checked.wait(200, 503)
    checked.serve(pods, externalTrafficPolicy="Cluster")
    checked.wait(REFUSED, REFUSED)
    for node in lab.nodes:
        for version in checked.cluster.versions:
            place = (address_of(node, version), checked.spec.node_port)
            assert pods_at(lab.client, *place) == names(pods)
    checked.serve(pods, **LOCAL)
    checked.wait(200, 503)


def test_another_port_takes_the_place_of_the_first_and_goes_with_the_service(checked, lab):
    checked.serve(lab.pods)
    checked.wait(200, 200)
    old, checked.port = checked.port, checked.port + 500
    checked.serve(lab.pods, healthCheckNodePort=checked.port)
    checked.wait(200, 200)
    node = lab.node("node1")
    assert ask(lab.client, node.ipv4, old).status == REFUSED
    checked.cluster.remove(checked.spec)
    checked.wait(REFUSED, REFUSED)


def test_pods_and_the_node_itself_may_ask_too(checked, lab):
    checked.serve(lab.pods_on("node1"))
    checked.wait(200, 503)
    node = lab.node("node1")
    for version in checked.cluster.versions:
        for member in (lab.pod("pod-1-1"), lab.pod("pod-2-1"), node):
            assert ask(member, address_of(node, version), checked.port).status == 200
        assert ask(node, LOOPBACK[version], checked.port).status == 200


def only_at(node: LabNode) -> list[str]:
    return ["--nodeport-addresses", f"{node.ipv4}/32,{node.ipv6}/128"]


def test_nodeport_addresses_say_where_to_ask(own_lab, tmp_path):
    node = own_lab.node("node1")
    with started(own_lab, tmp_path, only_at(node), ["node1"]) as cluster:
        checked = Checked(cluster)
        checked.serve(own_lab.pods_on("node1"))
        for version in cluster.versions:
            here = (address_of(node, version), checked.port)
            wait_healthy(own_lab.client, *here)
            assert ask(node, LOOPBACK[version], checked.port).status == REFUSED


def test_a_port_in_use_is_one_line_and_works_once_it_is_free(own_lab, tmp_path):
    node = own_lab.node("node1")
    with started(own_lab, tmp_path, (), ["node1"]) as cluster:
        checked = Checked(cluster)
        agent, name = cluster.agents["node1"], checked.spec.name
        with opened(node, 4) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("0.0.0.0", checked.port))
            other.listen()
            checked.serve(own_lab.pods_on("node1"))
            wait_until(lambda: status(node)["agent"]["health_check_errors"], "the error is shown")
            checked.serve(own_lab.pods_on("node1")[:1])
        port = checked.port
        line = f"failed to start healthcheck default/{name} on 0.0.0.0:{port}: Address already in"
        assert agent.said().count(line) == 1
        for version in cluster.versions:
            wait_healthy(own_lab.client, address_of(node, version), port)
        assert status(node)["agent"]["health_check_errors"] == {}


def test_a_restarted_agent_answers_again(own_lab, tmp_path):
    node = own_lab.node("node1")
    with started(own_lab, tmp_path, (), ["node1"]) as cluster:
        checked, agent = Checked(cluster), cluster.agents["node1"]
        checked.serve(own_lab.pods_on("node1"))
        place = (own_lab.client, node.ipv4, checked.port)
        wait_healthy(*place)
        agent.stop()
        assert ask(*place).status == REFUSED
        agent.start()
        agent.wait_in_sync()
        wait_healthy(*place)

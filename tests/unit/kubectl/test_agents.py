# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl.agents import RemoteAgent, find_agents
from tests.unit.kubectl.api_server import node, pod

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"


def test_each_node_has_its_agent_or_none(access, objects):
    objects.lists[PODS] = [pod("b"), pod("a", ready=False)]
    objects.lists[NODES] = [node("a"), node("b"), node("c")]
    image = "example.com/ebpflb:0.1.0"
    assert find_agents(access) == [
        RemoteAgent("a", "kube-system", "ebpflb-a", False, image),
        RemoteAgent("b", "kube-system", "ebpflb-b", True, image),
        RemoteAgent("c", "", "", False, ""),
    ]


def test_without_the_right_to_list_nodes_those_with_an_agent_are_found(access, objects):
    objects.lists[PODS] = [pod("b"), pod("a")]
    objects.forbidden[NODES] = "no"
    assert [each.node for each in find_agents(access)] == ["a", "b"]


def test_a_node_on_which_no_agent_can_run_is_left_out(access, objects):
    objects.lists[PODS] = [pod("a")]
    labels = {"type": "virtual-kubelet"}, {"kubernetes.io/os": "windows"}
    objects.lists[NODES] = [node("a"), *(node("x", **each) for each in labels)]
    assert [each.node for each in find_agents(access)] == ["a"]


def test_the_pod_that_serves_is_the_agent(access, objects):
    failed = pod("a", "evicted", ready=False, creationTimestamp="2026-11-23T09:00:00Z")
    failed["status"]["phase"] = "Failed"
    ending = pod("a", "ending", ready=False, deletionTimestamp="2026-11-23T10:00:00Z")
    objects.lists[PODS] = [ending, pod("a", "starting", ready=False), failed]
    objects.lists[NODES] = []
    assert [each.pod for each in find_agents(access)] == ["starting"]
    objects.lists[PODS].insert(0, pod("a", "ready"))
    assert [each.pod for each in find_agents(access)] == ["ready"]


def test_agents_of_other_products_are_none(access, objects):
    other = pod("a")
    other["spec"]["containers"][0]["name"] = "trace-agent"
    objects.lists[PODS] = [other]
    objects.lists[NODES] = [node("a")]
    with pytest.raises(ClusterError, match="no agents found: no pod in any namespace"):
        find_agents(access)


def test_one_namespace_is_enough(access, objects):
    objects.lists["/api/v1/namespaces/lb/pods"] = [pod("a")]
    objects.lists[NODES] = []
    assert [each.node for each in find_agents(access, "lb")] == ["a"]


def test_a_user_who_may_not_list_pods_is_told_what_helps(access, objects):
    objects.forbidden[PODS] = 'pods is forbidden: User "me" cannot list resource "pods"'
    with pytest.raises(ClusterError, match=r'for agents: .*User "me".*--agent-namespace'):
        find_agents(access)

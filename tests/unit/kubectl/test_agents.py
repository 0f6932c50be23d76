# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl.agents import RemoteAgent, find_agents
from tests.unit.kubectl.api_server import DAEMON_SETS, daemon_set, node, pod

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"


def test_each_node_has_its_agent_or_none(access, objects):
    objects.lists[PODS] = [pod("b"), pod("a", ready=False)]
    objects.lists[NODES] = [node("a"), node("b"), node("c")]
    image = "example.com/ebpflb:0.1.0"
    assert find_agents(access).agents == [
        RemoteAgent("a", "kube-system", "ebpflb-a", False, image),
        RemoteAgent("b", "kube-system", "ebpflb-b", True, image),
        RemoteAgent("c", "", "", False, ""),
    ]


def test_without_the_right_to_list_nodes_those_with_an_agent_are_found(access, objects):
    objects.lists[PODS] = [pod("b"), pod("a")]
    objects.forbidden[NODES] = "no"
    assert [each.node for each in find_agents(access).agents] == ["a", "b"]


def test_a_node_on_which_no_agent_can_run_is_left_out(access, objects):
    objects.lists[PODS] = [pod("a")]
    labels = {"type": "virtual-kubelet"}, {"kubernetes.io/os": "windows"}
    objects.lists[NODES] = [node("a"), *(node("x", **each) for each in labels)]
    assert [each.node for each in find_agents(access).agents] == ["a"]


def test_the_pod_that_serves_is_the_agent(access, objects):
    failed = pod("a", "evicted", ready=False, creationTimestamp="2026-11-23T09:00:00Z")
    failed["status"]["phase"] = "Failed"
    ending = pod("a", "ending", ready=False, deletionTimestamp="2026-11-23T10:00:00Z")
    objects.lists[PODS] = [ending, pod("a", "starting", ready=False), failed]
    objects.lists[NODES] = []
    assert [each.pod for each in find_agents(access).agents] == ["starting"]
    objects.lists[PODS].insert(0, pod("a", "ready"))
    assert [each.pod for each in find_agents(access).agents] == ["ready"]


def test_agents_of_other_products_are_none(access, objects):
    other = pod("a")
    other["spec"]["containers"][0]["name"] = "trace-agent"
    objects.lists[PODS] = [other]
    objects.lists[NODES] = [node("a")]
    with pytest.raises(ClusterError, match="no agents found: no DaemonSet in any namespace"):
        find_agents(access)


def test_one_namespace_is_enough(access, objects):
    objects.lists["/api/v1/namespaces/lb/pods"] = [pod("a", namespace="lb")]
    objects.lists["/apis/apps/v1/namespaces/lb/daemonsets"] = [daemon_set("lb")]
    objects.lists[NODES] = []
    assert [each.node for each in find_agents(access, "lb").agents] == ["a"]


def impostors():
    """Newer than the agent, and as ready."""
    newer: dict[str, Any] = {"creationTimestamp": "2026-11-24T09:00:00Z"}
    forged = {"namespace": "shop", **newer}
    unowned = pod("a", "unowned", ownerReferences=[], **newer)
    no_controller = pod("a", "reference", **newer)
    del no_controller["metadata"]["ownerReferences"][0]["controller"]
    no_host = pod("a", "own-network", **newer)
    no_host["spec"]["hostNetwork"] = False
    return [pod("a", "elsewhere", **forged), unowned, no_controller, no_host]


def test_a_pod_that_only_looks_like_an_agent_is_none_and_is_named(access, objects):
    objects.lists[PODS] = [*impostors(), pod("a")]
    objects.lists[NODES] = []
    found = find_agents(access)
    assert [each.pod for each in found.agents] == ["ebpflb-a"]
    assert found.impostors == [
        "kube-system/own-network on a",
        "kube-system/reference on a",
        "kube-system/unowned on a",
        "shop/elsewhere on a",
    ]


def test_impostors_alone_are_no_agents(access, objects):
    objects.lists[PODS] = impostors()
    with pytest.raises(ClusterError, match="no agents found"):
        find_agents(access)


def test_impostors_are_one_line_in_every_command(nodes):
    nodes.add("a")
    nodes.objects.lists[PODS] += impostors()
    nodes.say("a", "flows", "")
    told = nodes.run("flows").stderr
    assert told.startswith("ignored, since the agents' DaemonSet has not created them: ")
    assert told.endswith(" and 1 more\n")


def test_agents_in_two_namespaces_have_to_be_chosen(access, objects):
    objects.lists[DAEMON_SETS].append(daemon_set("shop", "other"))
    objects.lists[PODS] = [pod("a")]
    with pytest.raises(ClusterError, match=r"namespace: kube-system, shop: .*--agent-namespace"):
        find_agents(access)


def test_a_daemon_set_of_another_product_is_none_of_the_agents(access, objects):
    others = [daemon_set("shop", str(number)) for number in range(3)]
    others[0]["spec"]["selector"]["matchLabels"] = {}
    others[1]["spec"]["template"]["spec"]["hostNetwork"] = False
    others[2]["spec"]["template"]["spec"]["containers"][0]["name"] = "trace-agent"
    objects.lists[DAEMON_SETS] += others
    objects.lists[PODS] = [pod("a")]
    objects.lists[NODES] = []
    assert [each.node for each in find_agents(access).agents] == ["a"]


def test_a_user_who_may_not_list_pods_gets_advice(access, objects):
    objects.forbidden[PODS] = 'pods is forbidden: User "me" cannot list resource "pods"'
    with pytest.raises(ClusterError, match=r'for agents: .*User "me".*--agent-namespace'):
        find_agents(access)

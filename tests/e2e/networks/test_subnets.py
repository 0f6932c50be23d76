# SPDX-License-Identifier: Apache-2.0
"""An uplink with two subnets: the node masquerades with its address in the next hop's subnet."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebpflb.lab import Lab, LabNode
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, answers
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.explained import explained, place

POD = "pod-2-1"
# In the second subnet. The IPv6 one shares more bits with the pods' than the first subnet does.
HOSTS = {4: ("10.{}.30.{}", 24), 6: ("fdeb:f1b:{:x}:1f2::{:x}", 64)}
VERSIONS = pytest.mark.parametrize("version", [4, 6])


def second(lab: Lab, node: int, version: int) -> str:
    """The node's address in the second subnet."""
    text, _ = HOSTS[version]
    return text.format(lab.layout.index + (100 if version == 4 else 0), node)


@pytest.fixture
def subnets(cluster: Cluster, lab: Lab) -> Iterator[Lab]:
    """Both nodes have a second address on eth0, and their agents know it."""
    added = [
        (node, f"{second(lab, number, version)}/{length}")
        for number, node in enumerate(lab.nodes, start=1)
        for version, (_, length) in HOSTS.items()
    ]
    for node, address in added:
        node.exec(["ip", "address", "add", address, "dev", "eth0", "nodad"])
    wait_until(lambda: all(map(has_subnets, lab.nodes)), "the agents know the subnets")
    yield lab
    for node, address in added:
        node.exec(["ip", "address", "del", address, "dev", "eth0"])
    wait_until(lambda: not any(map(has_subnets, lab.nodes)), "the agents forget them")


def has_subnets(node: LabNode) -> bool:
    return bool(list(pinned_maps(node)["lb_subnets"].items()))


@contextmanager
def routed(lab: Lab, version: int, *way: str) -> Iterator[None]:
    """node1 reaches the pods of node2 over the second subnet."""
    node, to = lab.node("node1"), str(lab.layout.ranges_of(version).pods(2))
    (before,) = json.loads(node.exec(["ip", f"-{version}", "-json", "route", "show", to]).stdout)
    node.exec(["ip", "route", "replace", to, *way])
    yield
    node.exec(["ip", "route", "replace", to, "via", before["gateway"], "dev", before["dev"]])


def seen_by_pod(cluster: Cluster, version: int, protocol: str) -> set[str]:
    """The client that a pod of node2 sees behind a NodePort of node1; `explain` agrees."""
    lab = cluster.lab
    node, client = lab.node("node1"), address_of(lab.client, version)
    spec = cluster.serve(cluster.new(), [lab.pod(POD)])
    at = address_of(node, version)
    seen = {
        str(found.get("client_address") or found["error"])
        for found in answers(lab.client, at, spec.node_port, protocol, 3)
    }
    (backend,) = explained(node, client, place(at, spec.node_port, protocol), 0)["kernel"][
        "backends"
    ]
    assert seen == {backend["masquerade"]}
    return seen


def seen_with_netfilter(lab: Lab, version: int, protocol: str) -> set[str]:
    """The same with iptables of node1 masquerading the client's packets to the pod itself."""
    node, pod, client = (lab.node("node1"), lab.pod(POD), lab.client)
    target, via = address_of(pod, version), address_of(node, version)
    tool = "iptables" if version == 4 else "ip6tables"
    rule = ["POSTROUTING", "-d", target, "-j", "MASQUERADE"]
    node.exec([tool, "-t", "nat", "-A", *rule])
    client.exec(["ip", "route", "add", target, "via", via])
    found = answers(client, target, lab.config.port, protocol, 3)
    client.exec(["ip", "route", "del", target])
    node.exec([tool, "-t", "nat", "-D", *rule])
    return {str(each.get("client_address") or each["error"]) for each in found}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@VERSIONS
def test_the_address_is_in_the_subnet_of_the_next_hop(cluster, subnets, version, protocol):
    first = address_of(subnets.node("node1"), version)
    assert seen_by_pod(cluster, version, protocol) == {first}
    own, via = second(subnets, 1, version), second(subnets, 2, version)
    for way in (["via", via], ["via", via, "src", first]):
        with routed(subnets, version, *way):
            assert seen_by_pod(cluster, version, protocol) == {own}
            assert seen_with_netfilter(subnets, version, protocol) == {own}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_behind_a_link_local_next_hop_it_is_like_the_destination(cluster, subnets, protocol):
    links = ["ip", "-json", "-6", "address", "show", "dev", "eth0", "scope", "link"]
    devices = json.loads(subnets.node("node2").exec(links).stdout)
    (via,) = (each["local"] for device in devices for each in device.get("addr_info", []) if each)
    with routed(subnets, 6, "via", via, "dev", "eth0"):
        assert seen_by_pod(cluster, 6, protocol) == {second(subnets, 1, 6)}
        assert seen_with_netfilter(subnets, 6, protocol) == {second(subnets, 1, 6)}

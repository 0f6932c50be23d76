# SPDX-License-Identifier: Apache-2.0
"""A load-balancer IP that a node has on its uplink and answers ARP for, like kube-vip's; it
moves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.lab import Lab, LabNode
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.address import Family, format_address, parse_address
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, Attempt, answers, results
from tests.e2e.harness.waiting import wait_until
from tests.e2e.mode import present_mode
from tests.e2e.steps.troubles import troubles

UPLINK = "eth0"
_SEVERAL = 5


def vips(lab: Lab, spec: ServiceSpec) -> dict[int, str]:
    """By IP version."""
    return {version: lab.ingress_ip(spec.number, version) for version in (4, 6)}


@contextmanager
def announced(lab: Lab, node: LabNode, addresses: dict[int, str]) -> Iterator[None]:
    """Only this node has the addresses; the client resolves them on the link."""
    for version, address in addresses.items():
        bits = 32 if version == 4 else 128
        nodad = ["nodad"] if version == 6 else []
        node.exec(["ip", "addr", "add", f"{address}/{bits}", "dev", UPLINK, *nodad])
        lab.client.exec(["ip", "route", "replace", f"{address}/{bits}", "dev", UPLINK])
        lab.client.exec(["ip", f"-{version}", "neigh", "flush", "dev", UPLINK])
    try:
        yield
    finally:
        for version, address in addresses.items():
            bits = 32 if version == 4 else 128
            node.exec(["ip", "addr", "del", f"{address}/{bits}", "dev", UPLINK])
            lab.client.exec(["ip", "route", "del", f"{address}/{bits}", "dev", UPLINK])


def deprecate(node: LabNode, address: str) -> None:
    """As kube-vip and keepalived do for IPv6; otherwise the node's processes would use it as a
    source.
    """
    node.exec(["ip", "addr", "change", f"{address}/128", "dev", UPLINK, "preferred_lft", "0"])


def who_answers(lab: Lab, addresses: dict[int, str]) -> set[str]:
    """From outside, from both nodes and from a pod."""
    members = (lab.client, *lab.nodes, lab.pod("pod-1-1"))
    attempts = [
        Attempt(member, address, 80, protocol)
        for member in members
        for address in addresses.values()
        for protocol in PROTOCOLS
    ]
    return set().union(*results(attempts).values())


def is_known(node: LabNode, address: str) -> bool:
    """Whether the agent knows that the node has it."""
    flags = Lookups(pinned_maps(node)).addr_flags_of(parse_address(address))
    return AddrFlag.LB_ADDR_NODE in flags


def sources(cluster: Cluster, node: LabNode) -> list[str]:
    """The primary addresses of a node according to its agent."""
    lookups = Lookups(pinned_maps(node))
    return [format_address(lookups.node_address(Family(version))) for version in cluster.versions]


@pytest.mark.parametrize("pod", ["pod-1-2", "pod-2-2"])
def test_a_load_balancer_ip_moves_from_node_to_node(cluster, lab, pod):
    spec = cluster.serve(cluster.new("LoadBalancer"), [lab.pod(pod)])
    addresses = vips(lab, spec)
    for node in (*lab.nodes, lab.nodes[0]):
        with announced(lab, node, addresses):
            knows = partial(is_known, node, addresses[6])
            wait_until(knows, "the agent knows it")
            own = [address_of(node, version) for version in cluster.versions]
            assert sources(cluster, node) == own
            deprecate(node, addresses[6])
            assert who_answers(lab, addresses) == {pod}
            assert troubles(node) == []
            for version, address in addresses.items():
                for protocol in PROTOCOLS:
                    said = answers(lab.client, address, 80, protocol, _SEVERAL)
                    is_kept = lab.pod(pod).node == node.name or present_mode().has_dsr
                    seen = address_of(lab.client if is_kept else node, version)
                    assert {each["client_address"] for each in said} == {seen}

# SPDX-License-Identifier: Apache-2.0
"""Services move one by one from a running kube-proxy to an agent on the same node, and back."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pytest

from ebpflb.lab import Lab, LabConfig, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.cluster.harness.lab_kube_proxy import lab_kube_proxy
from tests.cluster.harness.layout import KubeProxy
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.in_force import offered
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, fate
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.operations.kube_proxy_rules import remove_rules

SPEC = ServiceSpec("canary", 90, "NodePort", node_port=31999)
OPTIONS = (
    "--service-selector=canary=yes",
    "--metrics-bind-address=127.0.0.1:20249",
    "--healthz-bind-address=127.0.0.1:20256",
)


@pytest.fixture(scope="module")
def own_lab() -> Iterator[Lab]:
    with built(LabConfig(lab_name(), pods=2)) as lab:
        yield lab


@pytest.fixture
def lab(own_lab: Lab) -> Iterator[Lab]:
    """Everything of either proxy is removed from the node afterwards."""
    yield own_lab
    node = own_lab.node("node1")
    ebpflb(node, "cleanup")
    remove_rules(node)


def label(cluster: Cluster, value: str, pods: Sequence[Member] = ()) -> None:
    """Return when it is in force at the agent."""
    objects = cluster.lab.service(SPEC, pods or cluster.lab.pods)
    objects[0]["metadata"]["labels"] = {"canary": value}
    cluster.write(SPEC, objects, wait=False)
    node = cluster.lab.node("node1")
    wait_until(lambda: bool(offered(node)) is (value == "yes"), f"canary={value}")


def is_answered(member: Member, address: str, port: int, protocol: str) -> bool:
    return fate(member, address, port, protocol).startswith("pod")


@pytest.mark.parametrize("mode", ["iptables", "nftables"])
def test_a_service_moves_there_and_back_under_load(lab: Lab, mode: KubeProxy, tmp_path):
    node = lab.node("node1")
    ways = [(lab.client, address_of(node, version), SPEC.node_port) for version in (4, 6)]
    with (
        lab_kube_proxy(node, mode, tmp_path / "kube-proxy.log"),
        started(lab, tmp_path, OPTIONS, nodes=["node1"]) as cluster,
    ):
        label(cluster, "no")
        for way, protocol in itertools.product(ways, PROTOCOLS):
            wait_until(partial(is_answered, *way, protocol), "kube-proxy's rules", 60)
        with none_fails(cluster, SPEC, held=True):
            for _ in range(2):
                label(cluster, "yes")
                # Open connections belong to the agent.
                with none_fails(cluster, SPEC, held=True):
                    label(cluster, "no")
                    time.sleep(2)


def test_udp_flows_are_answered_on_either_side(lab: Lab, tmp_path):
    node, pod = lab.node("node1"), lab.pod("pod-2-1")
    ways = [(lab.client, address_of(node, version), SPEC.node_port) for version in (4, 6)] + [
        (member, lab.cluster_ip(SPEC.number, version), SPEC.port)
        for member in (node, lab.pod("pod-1-1"))
        for version in (4, 6)
    ]
    with (
        lab_kube_proxy(node, "nftables", tmp_path / "kube-proxy.log"),
        started(lab, tmp_path, OPTIONS, nodes=["node1"]) as cluster,
        ExitStack() as stack,
    ):
        label(cluster, "no", [pod])
        for way in ways:
            wait_until(partial(is_answered, *way, "udp"), "kube-proxy's rules", 60)
        held = []
        for value in ("yes", "no", "yes", "no"):
            held += [stack.enter_context(connected(*way, "udp")) for way in ways]
            assert [exchange(each) for each in held] == [pod.name] * len(held)
            label(cluster, value, [pod])
            assert [exchange(each) for each in held] == [pod.name] * len(held)

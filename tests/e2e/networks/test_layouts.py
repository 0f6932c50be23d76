# SPDX-License-Identifier: Apache-2.0
"""Nodes configured like network plugins that cannot run here, one node for each, in one lab."""

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, LabConfig, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.command import ebpflb, status
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.questions import PROTOCOLS, Attempt, results
from tests.e2e.networks import aws
from tests.e2e.networks.plugins import (
    UPLINK_BRIDGE,
    VERSIONS,
    lay_out_azure,
    lay_out_gke,
    lay_out_switch,
)
from tests.e2e.steps.explained import explained, place

AWS, VETHS, SWITCH = (f"node{number}" for number in range(1, 4))
AZURE_POD, GKE_POD = "pod-2-1", "pod-2-2"
PODS = (aws.FIRST, aws.SECOND, aws.GROUPED, AZURE_POD, GKE_POD, "pod-3-1", "pod-3-2")
# On another node than this one.
REMOTE = {AWS: AZURE_POD, VETHS: aws.GROUPED, SWITCH: aws.SECOND}
_PORT = 80
# A veth stands for a VLAN.
_OPTIONS = ["--host-devices", f"+{aws.VLAN}"]


class Laid(NamedTuple):
    """The lab with agents, and a Service for each pod and policy."""

    cluster: Cluster
    services: Mapping[tuple[str, str], ServiceSpec]


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laid]:
    with built(LabConfig(lab_name(), nodes=3, pods=3)) as lab:
        aws.lay_out(lab)
        lay_out_azure(lab, lab.pod(AZURE_POD))
        lay_out_gke(lab, lab.pod(GKE_POD))
        lay_out_switch(lab, SWITCH)
        with started(lab, tmp_path_factory.mktemp("layouts"), _OPTIONS) as cluster:
            services = dict(_served(cluster))
            wait_in_force(cluster.nodes)
            yield Laid(cluster, services)


def _served(cluster: Cluster) -> Iterator[tuple[tuple[str, str], ServiceSpec]]:
    for name, policy in product(PODS, ("Cluster", "Local")):
        spec = cluster.new(externalTrafficPolicy=policy)
        yield (name, policy), cluster.serve(spec, [cluster.lab.pod(name)], wait=False)


def from_outside(laid: Laid, node: str) -> Iterator[tuple[Attempt, str]]:
    """To NodePorts of pods on the node, and of one on another node."""
    lab = laid.cluster.lab
    here = [name for name in PODS if lab.pod(name).node == node]
    wanted = [(name, "Cluster") for name in [*here, REMOTE[node]]]
    # Pods with security groups: AWS does not support policy Local for them.
    wanted += [(name, "Local") for name in here if name != aws.GROUPED]
    for (name, policy), version in product(wanted, VERSIONS):
        port = laid.services[name, policy].node_port
        for address in _addresses(lab, node, version, name):
            for protocol in PROTOCOLS:
                yield Attempt(lab.client, address, port, protocol), name


def _addresses(lab: Lab, node: str, version: int, pod: str) -> Iterator[str]:
    yield address_of(lab.node(node), version)
    if node == AWS and pod != aws.GROUPED:
        yield aws.SUBNETS[aws.ENI][version].node


def from_inside(laid: Laid, node: str) -> Iterator[tuple[Attempt, str]]:
    """From the node and its pods to ClusterIPs of pods on this and other nodes, including
    themselves.
    """
    lab = laid.cluster.lab
    members: list[Member] = [pod for pod in lab.pods_on(node) if pod.name in PODS]
    wanted = [*(pod.name for pod in members), REMOTE[node]]
    for member, name, version in product([lab.node(node), *members], wanted, VERSIONS):
        address = lab.cluster_ip(laid.services[name, "Cluster"].number, version)
        # The VPC CNI lets the node itself reach pods with security groups by TCP only.
        is_grouped = (member.name, name) == (AWS, aws.GROUPED)
        for protocol in PROTOCOLS[: 1 if is_grouped else 2]:
            yield Attempt(member, address, _PORT, protocol), name


NODES = pytest.mark.parametrize(
    "node", [AWS, VETHS, SWITCH], ids=["AWS VPC CNI", "Azure and GKE", "Antrea and br-ex"]
)


@pytest.mark.parametrize("ways", [from_outside, from_inside])
@NODES
def test_every_way_leads_to_the_pod(laid, node, ways):
    expected = {attempt.key: {pod} for attempt, pod in ways(laid, node)}
    found = results(attempt for attempt, _ in ways(laid, node))
    assert {key: seen for key, seen in found.items() if seen != expected[key]} == {}


def test_packets_have_left_by_the_interface_that_has_their_source(laid):
    """Checks all the traffic above."""
    ruleset = laid.cluster.lab.underlay.exec(["nft", "-j", "list", "ruleset"]).stdout
    rules = [each["rule"]["expr"] for each in json.loads(ruleset)["nftables"] if "rule" in each]
    dropped = [part["counter"]["packets"] for rule in rules for part in rule if "counter" in part]
    assert dropped
    assert not any(dropped)


def test_explain_reports_that_a_pod_beside_the_node_sees_the_node(laid):
    lab = laid.cluster.lab
    node, port = lab.node(AWS), laid.services[aws.GROUPED, "Cluster"].node_port
    for version in VERSIONS:
        own = address_of(node, version)
        found = explained(node, address_of(lab.client, version), place(own, port), 0)
        (backend,) = found["kernel"]["backends"]
        assert backend["masquerade"] == own


@NODES
def test_doctor_finds_nothing(laid, node):
    done = ebpflb(laid.cluster.lab.node(node), "doctor")
    assert "0 errors, 0 warnings" in done.stdout, done.stdout


def test_a_bridge_with_the_uplink_has_the_programs(laid):
    hooks = {each["place"] for each in status(laid.cluster.lab.node(SWITCH))["loaded"]["hooks"]}
    assert UPLINK_BRIDGE in hooks
    assert "eth0" not in hooks

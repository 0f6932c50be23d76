# SPDX-License-Identifier: Apache-2.0
"""A broken network: clients get an error where possible, operators see the cause, and other
Services keep working.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ebpflb.lab import Lab, LabNode
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.namespaces import write_sysctls
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.command import ebpflb, metric
from tests.e2e.harness.questions import (
    PATIENCE,
    PROTOCOLS,
    SILENT,
    Attempt,
    fate,
    is_silent,
    results,
)
from tests.e2e.harness.reached import slices_of
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.explained import explained, place

LOST, GOOD = "pod-2-1", "pod-2-2"
# EHOSTUNREACH or ENETUNREACH, which connected UDP sockets do not report.
_TOLD = {"tcp": "OSError", "udp": SILENT}
_PORT = 80
_LONGEST = {4: 32, 6: 128}


@contextmanager
def route(lab: Lab, version: int, kind: str, rest: str = "") -> Iterator[None]:
    """node1's route to the unreachable pod."""
    node = lab.node("node1")
    where = f"{kind} {address_of(lab.pod(LOST), version)}/{_LONGEST[version]}".split()
    node.exec(["ip", f"-{version}", "route", "add", *where, *rest.split()])
    try:
        yield
    finally:
        node.exec(["ip", f"-{version}", "route", "del", *where, *rest.split()])


@pytest.fixture
def specs(cluster: Cluster, lab: Lab) -> dict[str, ServiceSpec]:
    """A Service for each pod."""
    return {name: cluster.serve(cluster.new(), [lab.pod(name)]) for name in (LOST, GOOD)}


def ways(lab: Lab, spec: ServiceSpec, version: int) -> list[Attempt]:
    """From outside, from a pod, and from the node."""
    node, inside = lab.node("node1"), lab.cluster_ip(spec.number, version)
    return [
        Attempt(member, address, port, protocol)
        for protocol in PROTOCOLS
        for member, address, port in (
            (lab.client, address_of(node, version), spec.node_port),
            (lab.pod("pod-1-1"), inside, _PORT),
            (node, inside, _PORT),
        )
    ]


def fates(
    lab: Lab, spec: ServiceSpec, version: int, seconds: float = PATIENCE
) -> dict[str, set[str]]:
    """The results of attempts on all paths, by protocol."""
    found: dict[str, set[str]] = {}
    for key, seen in results(ways(lab, spec, version), seconds=seconds).items():
        found.setdefault(key[-1], set()).update(seen)
    return found


def everywhere(fate_of: str) -> dict[str, set[str]]:
    """The same result on all paths."""
    return {protocol: {fate_of} for protocol in PROTOCOLS}


def dropped(node: LabNode, reason: str, device: str = "eth0") -> float:
    return metric(node, f'ebpflb_dropped_total{{interface="{device}",reason="{reason}"}}')


def doctor(node: LabNode) -> str:
    return " ".join(ebpflb(node, "doctor").stdout.split())


@pytest.mark.parametrize(
    ("kind", "version"), [("unreachable", 4), ("prohibit", 6), ("blackhole", 4)]
)
def test_a_route_that_points_nowhere_is_reported(lab, specs, kind, version):
    node, own = lab.node("node1"), address_of(lab.node("node1"), version)
    port, before = specs[LOST].node_port, dropped(node, "no_route")
    with route(lab, version, kind):
        assert {each: fate(lab.client, own, port, each, 1.5) for each in PROTOCOLS} == _TOLD
        wait_until(lambda: dropped(node, "no_route") >= before + len(PROTOCOLS), "it is counted")
        assert fates(lab, specs[GOOD], version) == everywhere(GOOD)
        inside = place(lab.cluster_ip(specs[LOST].number, version), _PORT)
        pod = address_of(lab.pod("pod-1-1"), version)
        for client, target in ((address_of(lab.client, version), place(own, port)), (pod, inside)):
            found = explained(node, client, target, 1)
            assert found["kernel"]["reason"] == "no_route"
        assert "no route leads there" in doctor(node)
    assert fates(lab, specs[LOST], version) == everywhere(LOST)


def is_named(lab: Lab, spec: ServiceSpec, version: int, said: str) -> bool:
    """`explain` and `doctor` name the fault soon after an attempt: on a machine with many
    namespaces, the kernel forgets neighbours that did not answer.
    """
    node = lab.node("node1")
    own = address_of(node, version)
    fate(lab.client, own, spec.node_port, "udp", 1.0)
    source, target = address_of(lab.client, version), place(own, spec.node_port)
    done = ebpflb(node, "explain", source, target, "-o", "json")
    backends = json.loads(done.stdout)["kernel"]["backends"]
    troubles = [each["trouble"] for each in backends]
    return troubles == [f"is out of reach: {said}"] and said in doctor(node)


@pytest.mark.parametrize("version", [4, 6])
def test_a_neighbour_that_never_answers_is_named(lab, specs, version):
    node = lab.node("node1")
    nobody = str(lab.layout.ranges_of(version).underlay()[0x99])
    said = f"the next hop {nobody} on eth0 does not answer"
    with route(lab, version, "unicast", f"via {nobody} dev eth0"):
        assert fates(lab, specs[LOST], version, 1.0)["udp"] == {SILENT}
        assert fates(lab, specs[GOOD], version) == everywhere(GOOD)
        wait_until(partial(is_named, lab, specs[LOST], version, said), "the next hop is named")
    assert fates(lab, specs[LOST], version) == everywhere(LOST)
    node.exec(["ip", "neigh", "flush", "to", nobody])


@pytest.mark.parametrize("nodes", [("node1", "node2"), ("node2", "node1")])
def test_an_address_that_two_nodes_claim_is_where_the_route_leads(cluster, lab, nodes):
    """As when two nodes have the same pod CIDR: each has its own pod with that address."""
    spec, pod = cluster.new(), lab.pod("pod-1-2")
    objects = lab.service(spec, [pod])
    for piece in slices_of(objects):
        piece["endpoints"] = [{**piece["endpoints"][0], "nodeName": name} for name in nodes]
    cluster.write(spec, objects)
    for version in cluster.versions:
        assert fates(lab, spec, version) == everywhere(pod.name)


@pytest.fixture
def returning(lab) -> Iterator[None]:
    """The network routes load-balancer IPs to node1, whatever the source."""
    underlay = lab.underlay
    with underlay.entered():
        write_sysctls({"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
    for ranges in lab.layout.ranges:
        underlay.exec(["ip", "route", "add", str(ranges.external()), "via", ranges.node(1)])
    yield
    for ranges in lab.layout.ranges:
        underlay.exec(["ip", "route", "del", str(ranges.external())])
    with underlay.entered():
        write_sysctls({"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0"})


def serve_itself(cluster: Cluster) -> ServiceSpec:
    """A Service whose endpoint is its own load-balancer IP."""
    spec = cluster.new("LoadBalancer")
    objects = cluster.lab.service(spec, [cluster.lab.pod(LOST)])
    for piece in slices_of(objects):
        (endpoint,) = piece["endpoints"]
        del endpoint["nodeName"]
        endpoint["addresses"] = [cluster.lab.ingress_ip(spec.number, int(piece["addressType"][-1]))]
        for port in piece["ports"]:
            port["port"] = spec.port
    cluster.write(spec, objects)
    return spec


@pytest.mark.usefixtures("returning")
def test_a_service_that_is_its_own_endpoint_does_not_go_round(cluster, lab, specs):
    node, spec = lab.node("node1"), serve_itself(cluster)
    for version in cluster.versions:
        before = dropped(node, "loop")
        assert is_silent(lab.client, lab.ingress_ip(spec.number, version), spec.port, "udp")
        wait_until_equal(partial(dropped, node, "loop"), before + 1)
        assert fates(lab, specs[GOOD], version) == everywhere(GOOD)
    assert "a Service's own address is an endpoint" in doctor(node)

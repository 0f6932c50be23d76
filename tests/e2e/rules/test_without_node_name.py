# SPDX-License-Identifier: Apache-2.0
"""Endpoints without a node name, as in slices that operators maintain themselves.

No policy counts them as local, but packets follow the route: to a pod or a process here, or to
another node.
"""

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PROTOCOLS, answers, fate, is_silent
from tests.e2e.harness.reached import assert_reached, server, slices_of
from tests.e2e.harness.sockets import exchange, opened
from tests.e2e.steps.explained import explained, place

OTHER = {4: "203.0.113.77", 6: "2001:db8:113::77"}
_TIMES = 3


@pytest.fixture
def other_address(cluster, lab) -> Iterator[None]:
    """An address of node1 on its loopback device, which other nodes route to node1."""
    first, second = lab.nodes
    for version in cluster.versions:
        first.exec(["ip", "addr", "add", OTHER[version], "dev", "lo"])
        via = address_of(first, version)
        second.exec(["ip", "route", "add", OTHER[version], "via", via])
    yield
    for version in cluster.versions:
        bits = 32 if version == 4 else 128
        first.exec(["ip", "addr", "del", f"{OTHER[version]}/{bits}", "dev", "lo"])
        second.exec(["ip", "route", "del", OTHER[version]])


def serve_unnamed(cluster: Cluster, pods: Sequence[Member], **spec) -> ServiceSpec:
    """A Service of pods, or of other addresses, whose slices name no node."""
    made = cluster.new("LoadBalancer", **spec)
    objects = cluster.lab.service(made, pods)
    for piece in slices_of(objects):
        for endpoint in piece["endpoints"]:
            del endpoint["nodeName"]
    cluster.write(made, objects)
    return made


def serve_other_address(cluster: Cluster) -> ServiceSpec:
    made = cluster.new()
    objects = cluster.lab.service(made, cluster.lab.pods[:1])
    for piece in slices_of(objects):
        (endpoint,) = piece["endpoints"]
        del endpoint["nodeName"]
        endpoint["addresses"] = [OTHER[int(piece["addressType"][-1])]]
    cluster.write(made, objects)
    return made


def clients_seen(member: Member, address: str, port: int, protocol: str) -> dict[str, set[str]]:
    """The pods that reply, and the client that each has seen."""
    seen: dict[str, set[str]] = {}
    for each in answers(member, address, port, protocol, _TIMES):
        seen.setdefault(each.get("pod") or each["error"], set()).add(each.get("client_address", ""))
    return seen


def test_pods_are_reached_wherever_they_are(network):
    lab = network.lab
    spec = serve_unnamed(network, [lab.pod("pod-1-2"), lab.pod("pod-2-1")])
    assert_reached(network, spec, "pod-1-2", "pod-2-1")
    network.remove(spec)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pod_here_sees_the_client_and_is_not_local_for_a_policy(network, protocol):
    lab = network.lab
    pod, other_node = lab.pod("pod-1-2"), lab.node("node2")
    spec = serve_unnamed(network, [pod])
    local = serve_unnamed(network, [pod], externalTrafficPolicy="Local")
    for version in network.versions:
        target = address_of(lab.node("node1"), version)
        for member in (lab.client, other_node):
            seen = clients_seen(member, target, spec.node_port, protocol)
            assert seen == {pod.name: {address_of(member, version)}}
        found = explained(
            lab.node("node1"),
            address_of(lab.client, version),
            place(target, spec.node_port, protocol),
            0,
        )
        (backend,) = found["kernel"]["backends"]
        assert (backend["masquerade"], backend["reason"]) == ("", "")
        assert is_silent(lab.client, target, local.node_port, protocol)
    network.remove(spec)
    network.remove(local)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_process_at_another_address_of_the_node_is_reached(cluster, lab, other_address, protocol):
    node, port = lab.node("node1"), lab.config.port
    spec = serve_other_address(cluster)
    with server(node, "host", port):
        for version in cluster.versions:
            for at in lab.nodes:
                target = address_of(at, version)
                for member in (lab.client, lab.pod("pod-1-1"), lab.pod("pod-2-1")):
                    assert fate(member, target, spec.node_port, protocol) == "host", (at, member)


@contextlib.contextmanager
def without_device(lab: Lab, pod: Member) -> Iterator[None]:
    """The route to a pod of node1 is the default route's, as before the pod's device exists."""
    node = lab.node("node1")
    for address in pod.addresses:
        node.exec(["ip", "route", "del", address])
    try:
        yield
    finally:
        for address in pod.addresses:
            node.exec(
                ["ip", "route", "add", address, "dev", f"veth-{pod.name.removeprefix('pod-')}"]
            )


@pytest.mark.parametrize("version", [4, 6])
def test_a_device_that_comes_late_serves_new_flows_and_those_that_wait_for_it(
    cluster, lab, version
):
    pod = lab.pod("pod-1-2")
    spec = serve_unnamed(cluster, [pod])
    target = (address_of(lab.node("node1"), version), spec.node_port)
    with opened(lab.client, version) as early, opened(lab.client, version, "udp") as datagrams:
        with without_device(lab, pod):
            early.setblocking(False)
            assert early.connect_ex(target)
            datagrams.connect(target)
            datagrams.send(b"\n")
            assert is_silent(lab.client, *target)
        early.settimeout(20)
        assert exchange(datagrams) == pod.name
        assert exchange(early) == pod.name
    for protocol in PROTOCOLS:
        assert fate(lab.client, *target, protocol) == pod.name

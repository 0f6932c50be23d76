# SPDX-License-Identifier: Apache-2.0
"""Which addresses are a Service's, and which clients its policies allow."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebpflb.lab import Member
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    answers,
    fate,
    is_silent,
    names,
    node_ports,
    pods_at,
)
from tests.e2e.harness.sockets import connected, exchange, opened

PORT = 80
UNKNOWN_PORT = 4711
SSH_LIKE = 2222


@contextmanager
def listening(member: Member, version: int, port: int) -> Iterator[None]:
    """A process of the member that accepts connections and sends nothing."""
    with opened(member, version) as server:
        server.bind(("", port))
        server.listen()
        yield


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_internal_policy_local_leads_to_pods_of_this_node(cluster, lab, protocol):
    spec = cluster.serve(cluster.new("ClusterIP", internalTrafficPolicy="Local"), lab.pods)
    for place in cluster.cluster_ips(spec):
        for node in lab.nodes:
            here = lab.pods_on(node.name)
            for member in (node, here[0]):
                assert pods_at(member, place, PORT, protocol) == names(here)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_external_policy_local_keeps_clients_on_the_node_and_their_addresses(
    cluster, lab, protocol
):
    spec = cluster.serve(cluster.new(externalTrafficPolicy="Local"), lab.pods)
    for node in lab.nodes:
        for place in node_ports(cluster, spec, node.name):
            seen = answers(lab.client, place, spec.node_port, protocol)
            assert {each["pod"] for each in seen} == names(lab.pods_on(node.name))
            assert {each["client_address"] for each in seen} <= set(lab.client.addresses)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["external", "load-balancer"])
def test_external_addresses_are_served_to_everybody(cluster, lab, kind, protocol):
    spec = cluster.new("ClusterIP" if kind == "external" else "LoadBalancer")
    places = [lab.ingress_ip(spec.number, version) for version in cluster.versions]
    if kind == "external":
        spec = cluster.new("ClusterIP", externalIPs=places)
    cluster.serve(spec, lab.pods)
    for place in places:
        for member in (lab.client, lab.node("node1"), lab.pod("pod-1-1")):
            assert pods_at(member, place, PORT, protocol) == names(lab.pods), member.name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_port_that_a_cluster_ip_does_not_serve_is_refused(cluster, lab, client, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    for place in cluster.cluster_ips(spec):
        for member in (lab.node("node1"), lab.pod("pod-1-1"), client):
            for port in (UNKNOWN_PORT, spec.node_port):
                assert fate(member, place, port, protocol) == REFUSED, (member.name, port)


def test_a_node_port_is_one_on_addresses_of_nodes_only(cluster, lab):
    spec = cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        pod = address_of(lab.pod("pod-1-2"), version)
        for member in (lab.node("node1"), lab.pod("pod-1-1")):
            assert fate(member, pod, spec.node_port) == REFUSED
        nobody = lab.ingress_ip(spec.number, version)
        assert is_silent(lab.client, nobody, spec.node_port)


def test_a_pods_gateway_is_an_address_of_the_node(cluster, lab):
    spec = cluster.serve(cluster.new(), lab.pods)
    for ranges in lab.layout.ranges:
        place = (ranges.pod_gateway(1), spec.node_port)
        for protocol in PROTOCOLS:
            assert pods_at(lab.pod("pod-1-1"), *place, protocol) == names(lab.pods)


@pytest.mark.parametrize("version", [4, 6])
def test_what_else_listens_on_a_node_is_left_alone(cluster, lab, version):
    cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    address = address_of(node, version)
    with listening(node, version, SSH_LIKE):
        for member in (lab.client, lab.pod("pod-1-1"), lab.pod("pod-2-1"), node):
            with connected(member, address, SSH_LIKE):
                pass
    assert fate(lab.client, address, SSH_LIKE) == REFUSED


@pytest.mark.parametrize("version", [4, 6])
def test_a_node_port_wins_over_a_server_of_the_host(cluster, lab, version):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    place = (address_of(node, version), spec.node_port)
    with listening(node, version, spec.node_port):
        assert pods_at(lab.client, *place) == names(lab.pods)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_a_pod_reaches_itself(cluster, lab, version, protocol):
    pod = lab.pod("pod-1-1")
    spec = cluster.serve(cluster.new("LoadBalancer"), [pod])
    places = [
        (lab.cluster_ip(spec.number, version), PORT),
        (lab.ingress_ip(spec.number, version), PORT),
        (address_of(lab.node("node1"), version), spec.node_port),
    ]
    for place in places:
        with connected(pod, *place, protocol) as itself:
            assert [exchange(itself) for _ in range(3)] == [pod.name] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_socket_sees_whom_it_asked(cluster, lab, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    for place in cluster.cluster_ips(spec):
        for member in (lab.node("node1"), lab.pod("pod-1-1")):
            with connected(member, place, PORT, protocol) as asking:
                assert exchange(asking)
                assert asking.getpeername()[:2] == (place, PORT)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_socket_of_family_ipv6_reaches_services_of_ipv4(cluster, lab, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    place = (f"::ffff:{lab.cluster_ip(spec.number, 4)}", PORT)
    for member in (lab.node("node1"), lab.pod("pod-1-1")):
        with connected(member, *place, protocol) as asking:
            assert exchange(asking) in names(lab.pods)
            assert asking.getpeername()[:2] == place

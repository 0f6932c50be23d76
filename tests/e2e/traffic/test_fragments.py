# SPDX-License-Identifier: Apache-2.0
"""Datagrams larger than a packet, from every client to every frontend, on every kind of network."""

import socket
from collections.abc import Iterator
from random import Random

import pytest

from ebpflb.lab import Member
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.sockets import connected, echo, echoed

PORT = 80
SIZES = (2000, 8000)
IPV6_MTU, NARROW = 24, 1400


@pytest.fixture(params=["pod-1-2", "pod-2-2"])
def places(request: pytest.FixtureRequest, network: Cluster) -> Iterator[list[tuple[str, int]]]:
    """ClusterIP, NodePort and external IP of a pod on this or the other node, seen from node1."""
    lab = network.lab
    spec = network.new()
    external = [lab.ingress_ip(spec.number, version) for version in network.versions]
    spec = network.new(externalIPs=external)
    network.serve(spec, [lab.pod(request.param)])
    for ranges in lab.layout.ranges:
        via = address_of(lab.node("node1"), ranges.version)
        lab.client.exec(["ip", "route", "replace", str(ranges.services()), "via", via])
    node_ports = [(address_of(lab.node("node1"), v), spec.node_port) for v in network.versions]
    yield [(ip, PORT) for ip in (*network.cluster_ips(spec), *external)] + node_ports
    network.clear()


@pytest.fixture(params=["pod-1-1", "node1", "outside"])
def source(request: pytest.FixtureRequest, network: Cluster) -> Member:
    lab = network.lab
    members = {"node1": lab.node("node1"), "outside": lab.client}
    return members.get(request.param) or lab.pod(request.param)


def test_large_datagrams_are_echoed(network: Cluster, places, source: Member):
    for size in SIZES:
        text = Random(1).randbytes(size // 2).hex().encode()
        for address, port in places:
            with connected(source, address, port, "udp") as udp:
                if udp.family == socket.AF_INET6:
                    udp.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU, NARROW)
                assert echoed(udp, text) == text, (size, address, port)


def test_tcp_bodies_of_8000_bytes_are_echoed(network: Cluster, places, source: Member):
    body = Random(1).randbytes(8000)
    for address, port in places:
        with connected(source, address, port) as tcp:
            assert echo(tcp, body) == body, (address, port)

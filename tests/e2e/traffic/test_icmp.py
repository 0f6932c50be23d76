# SPDX-License-Identifier: Apache-2.0
"""ICMP errors pass through a Service, to pods covered by tc and to external clients."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.layout import Ranges
from ebpflb.lab.network import UPLINK
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.sockets import connected, echo, path_mtu

CLOSED = 9
NARROW_MTU = 1300
BODY = Random(1).randbytes(200_000)
FORWARDING = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}


class Way(NamedTuple):
    """The client, the address and port, and the pod behind it."""

    source: Member
    address: str
    port: int
    pod: Member

    def __str__(self) -> str:
        return f"{self.source.name} to {self.address} port {self.port}, {self.pod.name}"


@pytest.fixture(scope="module")
def covered(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Agents that serve pods by tc; the client reaches ClusterIPs by node1."""
    options = ("--socket-lb", "host")
    with started(own_lab, tmp_path_factory.mktemp("icmp"), options) as cluster:
        for ranges in own_lab.layout.ranges:
            for member in (own_lab.client, own_lab.underlay):
                via = ["via", ranges.node(1)]
                member.exec(["ip", "route", "add", str(ranges.services()), *via])
        yield cluster


@pytest.fixture
def ways(covered: Cluster) -> Iterator[list[Way]]:
    """To a pod on node1 and to one on the other node, each behind its own Service."""
    yield list(made_ways(covered, port=0))
    covered.clear()


@pytest.fixture
def closed(covered: Cluster) -> Iterator[list[Way]]:
    """The same, to a port that no pod listens on."""
    yield list(made_ways(covered, CLOSED))
    covered.clear()


def made_ways(cluster: Cluster, port: int) -> Iterator[Way]:
    lab = cluster.lab
    for pod in (lab.pod("pod-1-1"), lab.pod("pod-2-1")):
        spec = cluster.serve(cluster.new(), [pod], target_port=port)
        for version in cluster.versions:
            service = (lab.cluster_ip(spec.number, version), spec.port)
            node_port = (address_of(lab.node("node1"), version), spec.node_port)
            yield Way(lab.pod("pod-1-2"), *service, pod)
            yield Way(lab.client, *service, pod)
            yield Way(lab.client, *node_port, pod)
            if pod.node == "node1":
                yield Way(pod, *service, pod)


# A port that nobody listens on


def test_who_asks_a_closed_port_is_refused(closed):
    for way in closed:
        with connected(way.source, way.address, way.port, "udp") as udp:
            udp.send(b"\n")
            with pytest.raises(ConnectionRefusedError):
                udp.recv(100)


# A path with a smaller MTU


@contextmanager
def narrow_to_pods(lab: Lab) -> Iterator[None]:
    """The last hop to the pods takes only small packets."""
    with ExitStack() as undone:
        for pod in (lab.pod("pod-1-1"), lab.pod("pod-2-1")):
            for address in pod.addresses:
                node = lab.node(pod.node)
                route = ["ip", "route", "replace", address, "dev", f"veth{pod.name[3:]}"]
                node.exec([*route, "mtu", "lock", str(NARROW_MTU)])
                undone.callback(node.exec, route)
        undone.callback(forget, lab)
        yield


@contextmanager
def narrow_to_client(lab: Lab) -> Iterator[None]:
    """Packets from the nodes to the client pass a router that takes only small ones."""
    with ExitStack() as undone:
        for ranges in lab.layout.ranges:
            undone.enter_context(router_to_client(lab, ranges))
        undone.callback(forget, lab)
        yield


@contextmanager
def router_to_client(lab: Lab, ranges: Ranges) -> Iterator[None]:
    """The underlay's gateway is that router."""
    route = ["ip", "route", "replace", ranges.client()]
    lab.underlay.exec(["sh", "-c", f"echo 1 > /proc/sys/net/{FORWARDING[ranges.version]}"])
    lab.underlay.exec([*route, "dev", "br0", "mtu", "lock", str(NARROW_MTU)])
    for node in lab.nodes:
        node.exec([*route, "via", ranges.gateway(), "dev", UPLINK])
    yield
    for node in lab.nodes:
        node.exec(["ip", "route", "del", ranges.client()])
    lab.underlay.exec(["ip", "route", "del", ranges.client()])
    lab.underlay.exec(["sh", "-c", f"echo 0 > /proc/sys/net/{FORWARDING[ranges.version]}"])


def forget(lab: Lab) -> None:
    """Flush every cached path MTU."""
    for member in lab.members:
        for version in lab.config.family.versions:
            member.exec(["ip", f"-{version}", "route", "flush", "cache"])


def test_a_client_learns_what_a_router_behind_the_node_says(covered, ways):
    with narrow_to_pods(covered.lab):
        for way in ways:
            if way.source != way.pod:
                with connected(way.source, way.address, way.port) as bulk:
                    assert echo(bulk, BODY) == BODY, str(way)
                    assert path_mtu(bulk) == NARROW_MTU, str(way)


def test_a_pod_learns_what_a_router_on_the_way_to_the_client_says(covered, ways):
    with narrow_to_client(covered.lab):
        for way in ways:
            if way.source == covered.lab.client:
                with connected(way.source, way.address, way.port) as bulk:
                    assert echo(bulk, BODY) == BODY, str(way)
        for pod in {way.pod.name: way.pod for way in ways}.values():
            for version in covered.versions:
                learnt = pod.exec(["ip", f"-{version}", "route", "show", "cache"]).stdout
                assert f"mtu {NARROW_MTU}" in learnt, (pod.name, version)

# SPDX-License-Identifier: Apache-2.0
"""Packets of all sizes through tc on every kind of network: large ones, BIG TCP, and those whose
TTL expires.
"""

import ctypes
import errno
import hashlib
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple

import pytest

from ebpflb.lab import Cni, Member, Stack
from ebpflb.lab.network import UPLINK
from ebpflb.lab.offloads import big_tcp
from tests.e2e.conftest import WITH_IPV4, network_id
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.sockets import connected, echo, exchange, opened, path_mtu, version_of
from tests.e2e.harness.waiting import wait_until

PORT = 80
MEGABYTE = 1 << 20
BULK = 20 * MEGABYTE
DATAGRAM = 1400
# The overhead of VXLAN over IPv6, the largest.
LARGEST_IN_TUNNEL = 1430 - 48
NARROW_MTU = 1300
# linux/in.h and in6.h
IP_RECVERR, IPV6_RECVERR = 11, 25
# Sends without DF and ignores path MTUs, as where ICMP is filtered.
IP_MTU_DISCOVER, IP_PMTUDISC_OMIT = 10, 5
WITH_BIG_TCP = [(Cni.PTP, Stack.DUAL), (Cni.VXLAN, Stack.DUAL)]
MOST_IN_IP = 65_536
# linux/if_ether.h
ETH_P_ALL = 3
# asm-generic/socket.h, and a classic BPF program (linux/filter.h) that keeps what is longer.
SO_ATTACH_FILTER = 26
LOAD_LENGTH, IF_GREATER, KEEP = 0x80, 0x25, 0x06
ONLY_LONG = [
    (LOAD_LENGTH, 0, 0, 0),
    (IF_GREATER, 0, 1, MOST_IN_IP),
    (KEEP, 0, 0, 1),
    (KEEP, 0, 0, 0),
]


class Way(NamedTuple):
    """The address that the external client sends to, and the pod behind it."""

    name: str
    address: str
    port: int
    pod: str


def ends(network: Cluster) -> list[Member]:
    """A pod on the first node, and one on the other."""
    return [network.lab.pod("pod-1-1"), network.lab.pod("pod-2-1")]


@contextmanager
def long_frames(node: Member) -> Iterator[Callable[[], bool]]:
    """Whether the node has received or sent, at its uplink, one with more bytes than IP counts."""
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *each) for each in ONLY_LONG)
    )
    with node.entered():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with tap:
        pointer = struct.pack("HP", len(ONLY_LONG), ctypes.addressof(program))
        tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, pointer)
        tap.bind((UPLINK, ETH_P_ALL))
        yield lambda: bool(select.select([tap], [], [], 0)[0])


@contextmanager
def expiring(network: Cluster, way: Way, protocol: str, hops: int) -> Iterator[socket.socket]:
    """A socket whose packets live for this many hops; it gets the ICMP errors about them."""
    with opened(network.lab.client, version_of(way.address), protocol) as made:
        if version_of(way.address) == 4:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
            made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        else:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
            made.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        yield made


def reach(made: socket.socket, way: Way) -> str:
    """The pod that answers, or the name of the error."""
    try:
        made.connect((way.address, way.port))
        return exchange(made)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


@contextmanager
def narrow(network: Cluster, to: str) -> Iterator[None]:
    """Only small packets pass from the first node to the other one's pods, or to the client."""
    lab = network.lab
    node = lab.node("node1")
    with ExitStack() as undone:
        for ranges in lab.layout.ranges:
            route = ["ip", f"-{ranges.version}", "route"]
            pods = str(ranges.pods(2))
            known = node.exec([*route, "show", pods]).stdout.split()
            wanted = known if to == "pods" else [ranges.client(), "dev", UPLINK]
            # A router uses the MTU of a route only if it is locked.
            node.exec([*route, "replace", *wanted, "mtu", "lock", str(NARROW_MTU)])
            back = ["replace", *known] if to == "pods" else ["del", ranges.client()]
            for member in (lab.client, *ends(network)):
                undone.callback(member.exec, [*route, "flush", "cache"])
            undone.callback(node.exec, [*route, *back])
        yield


@contextmanager
def without_df(pods: list[Member]) -> Iterator[None]:
    """These pods send IPv4 without DF, and ignore path MTUs."""
    with ExitStack() as undone:
        for pod in pods:
            route = pod.exec(["ip", "-4", "route", "show", "default"]).stdout.split()
            mtu = pod.exec(["cat", "/sys/class/net/eth0/mtu"]).stdout.strip()
            pod.exec(["ip", "-4", "route", "replace", *route, "mtu", "lock", mtu])
            undone.callback(pod.exec, ["ip", "-4", "route", "replace", *route])
        yield


@pytest.fixture
def ways(network: Cluster) -> Iterator[list[Way]]:
    """Through NodePort and ClusterIP of the first node to a pod there and on the other node."""
    lab = network.lab
    for ranges in lab.layout.ranges:
        via = address_of(lab.node("node1"), ranges.version)
        lab.client.exec(["ip", "route", "replace", str(ranges.services()), "via", via])
    found = []
    for pod in ends(network):
        spec = network.serve(network.new(), [pod])
        for version in network.versions:
            node_port = (address_of(lab.node("node1"), version), spec.node_port)
            cluster_ip = (lab.cluster_ip(spec.number, version), PORT)
            found.append(Way(f"NodePort, {pod.name}, IPv{version}", *node_port, pod.name))
            found.append(Way(f"ClusterIP, {pod.name}, IPv{version}", *cluster_ip, pod.name))
    yield found
    network.clear()


def test_large_datagrams_pass(network, ways):
    config = network.lab.config
    narrow = (config.cni, config.family) == (Cni.VXLAN, Stack.IPV6)
    text = b"x" * ((LARGEST_IN_TUNNEL if narrow else DATAGRAM) - len(b"echo "))
    for way in ways:
        with connected(network.lab.client, way.address, way.port, "udp") as udp:
            udp.send(b"echo " + text)
            assert udp.recv(65536) == text, way.name


def test_bulk_arrives_as_it_was_sent(network, ways):
    body = Random(1).randbytes(BULK)
    for way in ways:
        with connected(network.lab.client, way.address, way.port) as bulk:
            received = echo(bulk, body)
        assert hashlib.sha256(received).digest() == hashlib.sha256(body).digest(), way.name


@pytest.mark.only_in(xdp="off")  # whose wires carry what fits into a frame
@pytest.mark.parametrize("network", WITH_BIG_TCP, indirect=True, ids=network_id)
def test_long_segments_arrive_as_they_were_sent(network, ways):
    # A kernel that forwards them over IPv6 finds them too big once they carry a jumbo option, with
    # ebpflb and without, and TCP repeats them in parts: a megabyte takes a second then. How long
    # they are follows from how fast the last ones went.
    body = Random(1).randbytes(MEGABYTE)

    def sent(way: Way, seen: Callable[[], bool]) -> bool:
        with connected(network.lab.client, way.address, way.port) as bulk:
            assert echo(bulk, body) == body, way.name
        return seen()

    with big_tcp(network.lab):
        for way in ways:
            with long_frames(network.lab.node("node1")) as seen:
                wait_until(partial(sent, way, seen), f"a long segment: {way.name}")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_ttl_that_expires_at_the_node_gets_an_error(network, ways, protocol):
    for way in ways:
        if way.pod == "pod-2-1":
            with expiring(network, way, protocol, hops=1) as short:
                assert reach(short, way) == "EHOSTUNREACH", way.name
            with expiring(network, way, protocol, hops=3) as enough:
                assert reach(enough, way) == way.pod, way.name


@pytest.mark.only_in(dsr="off")  # A tunnel is one hop, and takes the route to the node.
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_the_node_is_a_hop_on_the_way_to_another_one(network, ways, protocol):
    for way in ways:
        if way.pod == "pod-2-1":
            with expiring(network, way, protocol, hops=2) as short:
                short.settimeout(0.3)
                assert reach(short, way) != way.pod, way.name


@pytest.mark.only_in(dsr="off")  # A tunnel is one hop, and takes the route to the node.
def test_a_client_learns_how_large_packets_may_be(network, ways):
    body = Random(1).randbytes(MEGABYTE)
    with narrow(network, "pods"):
        for way in ways:
            with connected(network.lab.client, way.address, way.port) as bulk:
                assert echo(bulk, body) == body, way.name
                if way.pod == "pod-2-1":
                    assert path_mtu(bulk) == NARROW_MTU, way.name


def test_a_pod_learns_how_large_packets_may_be(network, ways):
    body = Random(1).randbytes(MEGABYTE)
    with narrow(network, "client"):
        for way in ways:
            with connected(network.lab.client, way.address, way.port) as bulk:
                assert echo(bulk, body) == body, way.name
        for pod in ends(network):
            for version in network.versions:
                learnt = pod.exec(["ip", f"-{version}", "route", "show", "cache"]).stdout
                assert f"mtu {NARROW_MTU}" in learnt, (pod.name, version)


@pytest.mark.parametrize("to", ["pods", "client"])
@pytest.mark.parametrize("network", WITH_IPV4, indirect=True, ids=network_id)
def test_ipv4_that_may_be_fragmented_is(network, ways, to):
    body = Random(1).randbytes(MEGABYTE)
    with narrow(network, to), without_df(ends(network)):
        for way in ways:
            if version_of(way.address) == 6:
                continue
            with connected(network.lab.client, way.address, way.port) as bulk:
                bulk.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_OMIT)
                assert echo(bulk, body) == body, way.name
            with connected(network.lab.client, way.address, way.port, "udp") as udp:
                udp.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_OMIT)
                for size in (DATAGRAM, DATAGRAM * 3, 1):
                    udp.send(b"echo " + b"x" * size)
                    assert udp.recv(65536) == b"x" * size, (way.name, size)

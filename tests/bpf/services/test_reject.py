# SPDX-License-Identifier: Apache-2.0
"""What is not let through: the ICMP error that the sender gets, or silence, and what is counted."""

import time
from collections import Counter

import pytest
from scapy.layers.inet import IP
from scapy.packet import Packet, Raw

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.model.address import Protocol
from tests.bpf.harness.datapath import Datapath, Result, Verdict, assert_untouched
from tests.bpf.harness.errors import (
    TIME_EXCEEDED,
    TOO_BIG,
    UNREACHABLE,
    error_header,
    network_length,
)
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import NARROW_ROUTE, NO_NEIGHBOUR, OVERLAY_MTU, ROUTE_MTU, Node
from tests.bpf.harness.packets import NODE_MAC, SENDER_MAC, End, Kind, assert_same, built, ttl_of
from tests.bpf.harness.programs import prog_test_run
from tests.bpf.harness.services import (
    DROP,
    client,
    cluster_ip,
    external_ip,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

PER_SECOND, FLOOD = 1000, 5000


def quoted(kind: Kind, packet: Packet) -> bytes:
    """The network header and the first bytes of the transport header, 20 of TCP, 8 of UDP."""
    return bytes(packet.payload)[: network_length(kind) + (20 if kind.proto is Protocol.TCP else 8)]


def assert_answered(result: Result, kind: Kind, packet: Packet, what: str, mtu: int = 0) -> None:
    """The sender gets a correct ICMP error that quotes its packet."""
    network = packet.payload
    answer = kind.packet(network.dst, network.src)
    answer.src, answer.dst = NODE_MAC, SENDER_MAC
    if kind.ip is IP:
        answer.payload.id = 0
    answer = answer / error_header(kind, what, mtu) / Raw(quoted(kind, packet))
    assert result.verdict is Verdict.REDIRECT
    assert_same(result.packet, built(answer))
    assert ttl_of(result.packet) == 64


# Refused


@pytest.mark.parametrize("program", ["lb_pod_ingress", "lb_host_ingress", "lb_host_egress"])
def test_an_unknown_port_of_a_cluster_ip_is_refused(datapath: Datapath, kind: Kind, program: str):
    frontend = cluster_ip(datapath, kind)
    request = kind.frame(pod(kind), frontend._replace(port=22))
    result = datapath.run(program, request)
    assert_answered(result, kind, request, UNREACHABLE)
    assert datapath.drops() == {DropReason.LB_DROP_UNKNOWN_PORT: 1}


@pytest.mark.parametrize("make", [cluster_ip, node_port, external_ip])
def test_a_frontend_without_endpoints_is_refused(datapath: Datapath, node: Node, kind: Kind, make):
    node_addresses(datapath, node)
    request = kind.frame(client(kind), make(datapath, kind))
    result = datapath.run("lb_host_ingress", request)
    assert_answered(result, kind, request, UNREACHABLE)
    assert datapath.drops() == {DropReason.LB_DROP_NO_ENDPOINT: 1}
    assert datapath.counts("lb_count_front", 1) == (0, 1, 0)
    assert not datapath.short()


def test_a_refused_pod_is_told_so(datapath: Datapath, kind: Kind):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind))
    result = datapath.run("lb_pod_ingress", request)
    assert_answered(result, kind, request, UNREACHABLE)


def test_a_short_packet_is_quoted_whole(datapath: Datapath, kind: Kind):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind), payload=b"")
    result = datapath.run("lb_pod_ingress", request)
    assert_answered(result, kind, request, UNREACHABLE)


@pytest.mark.parametrize("length", [1, 2, 3, 700, 1400])
def test_packets_of_any_length_are_refused(datapath: Datapath, kind: Kind, length: int):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind), payload=bytes(length))
    result = datapath.run("lb_pod_ingress", request)
    assert_answered(result, kind, request, UNREACHABLE)


def test_a_segmented_packet_is_refused_once(datapath: Datapath, kind: Kind):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind), payload=bytes(3000))
    result = datapath.run("lb_pod_ingress", request, gso_size=1000)
    assert_answered(result, kind, request, UNREACHABLE)


def test_a_segment_of_an_unknown_connection_is_not_refused(datapath: Datapath, tcp: Kind):
    frontend = cluster_ip(datapath, tcp)
    for port in (frontend.port, 22):
        packet = tcp.frame(pod(tcp), frontend._replace(port=port), "A")
        assert_untouched(datapath, "lb_pod_ingress", packet)


# No more than the kernel would


@pytest.mark.usefixtures("whole_seconds")
def test_only_so_many_are_refused_in_a_second(datapath: Datapath, programs: Loaded, udp: Kind):
    frame = bytes(udp.frame(pod(udp), cluster_ip(datapath, udp)))
    begin = time.monotonic()
    results = Counter(
        prog_test_run(programs.programs["lb_pod_ingress"], frame).retval for _ in range(FLOOD)
    )
    seconds = int(time.monotonic()) - int(begin) + 1
    assert PER_SECOND <= results[Verdict.REDIRECT] <= seconds * PER_SECOND
    assert results[Verdict.DROP] == FLOOD - results[Verdict.REDIRECT]
    assert seconds > FLOOD / PER_SECOND or results[Verdict.DROP]


@pytest.mark.usefixtures("whole_seconds")
def test_path_mtus_are_told_without_limit(
    datapath: Datapath, programs: Loaded, node: Node, udp: Kind
):
    node_addresses(datapath, node)
    frontend = node_port(datapath, udp, [remote_backend(datapath, udp)[1]])
    frame = bytes(sized(udp, frontend, OVERLAY_MTU + 1))
    program = programs.programs["lb_host_ingress"]
    verdicts = {prog_test_run(program, frame).retval for _ in range(FLOOD)}
    assert verdicts == {Verdict.REDIRECT}


# Dropped


def test_without_a_local_endpoint_it_is_dropped_in_silence(datapath: Datapath, kind: Kind):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind, if_empty=DROP))
    assert datapath.run("lb_pod_ingress", request).verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_LOCAL_ENDPOINT: 1}
    assert datapath.counts("lb_count_front", 1) == (0, 0, 1)
    assert not datapath.short()


def test_a_node_port_without_a_local_endpoint_drops(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    request = kind.frame(client(kind), node_port(datapath, kind, if_empty=DROP))
    assert datapath.run("lb_host_ingress", request).verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_LOCAL_ENDPOINT: 1}


# What a router answers


@pytest.mark.parametrize("ttl", [0, 1])
def test_a_packet_at_the_end_of_its_time_is_not_forwarded(
    datapath: Datapath, node: Node, kind: Kind, ttl: int
):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]), ttl=ttl)
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert_answered(result, kind, request, TIME_EXCEEDED)
    assert datapath.drops() == {DropReason.LB_DROP_TTL_EXCEEDED: 1}
    assert not datapath.short()


def test_a_reply_at_the_end_of_its_time_is_not_forwarded(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    sent = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex).packet
    masqueraded = End(sent.payload.src, sent.payload.payload.sport)
    reply = kind.frame(backend, masqueraded, "SA", ttl=1)
    result = datapath.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)
    assert_answered(result, kind, reply, TIME_EXCEEDED)


def sized(kind: Kind, target: End, length: int) -> Packet:
    """A request whose network layer has `length` bytes."""
    empty = len(kind.frame(client(kind), target, payload=b"").payload)
    return kind.frame(client(kind), target, payload=bytes(length - empty))


MTUS = pytest.mark.parametrize(
    ("addresses", "mtu"),
    [({}, OVERLAY_MTU), (NARROW_ROUTE, ROUTE_MTU), (NO_NEIGHBOUR, OVERLAY_MTU)],
    ids=["device", "route", "no neighbour"],
)


@MTUS
def test_a_packet_that_does_not_fit_is_answered_with_the_mtu(
    datapath: Datapath, node: Node, kind: Kind, addresses: dict[str, str], mtu: int
):
    node_addresses(datapath, node)
    address = addresses.get(kind.net.remote, kind.net.remote)
    _, index = remote_backend(datapath, kind, address)
    frontend = node_port(datapath, kind, [index])
    too_long = sized(kind, frontend, mtu + 1)

    result = datapath.run("lb_host_ingress", too_long, ifindex=node.uplink.ifindex)

    assert_answered(result, kind, too_long, TOO_BIG, mtu)
    assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}
    fitting = sized(kind, frontend, mtu)
    result = datapath.run("lb_host_ingress", fitting, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.REDIRECT
    assert len(result.packet) == len(fitting)


@MTUS
def test_what_counts_of_a_segmented_packet_are_its_segments(
    datapath: Datapath, node: Node, kind: Kind, addresses: dict[str, str], mtu: int
):
    node_addresses(datapath, node)
    address = addresses.get(kind.net.remote, kind.net.remote)
    _, index = remote_backend(datapath, kind, address)
    packet = sized(kind, node_port(datapath, kind, [index]), 3000)
    headers = len(packet.payload) - len(packet.payload.payload.payload)

    def run(gso_size: int) -> Result:
        ifindex = node.uplink.ifindex
        return datapath.run("lb_host_ingress", packet, ifindex=ifindex, gso_size=gso_size)

    assert run(mtu - headers).packet.payload.dst == address
    assert_answered(run(mtu - headers + 1), kind, packet, TOO_BIG, mtu)

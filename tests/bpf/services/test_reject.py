# SPDX-License-Identifier: Apache-2.0
"""Packets that are not forwarded: the ICMP error that the sender gets, or silence, and counters."""

import time
from collections import Counter

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.errors import (
    TIME_EXCEEDED,
    UNREACHABLE,
    assert_answered,
)
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import OVERLAY_MTU, Node
from tests.bpf.harness.packets import End, Kind, with_df
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


def test_a_refused_pod_gets_an_error(datapath: Datapath, kind: Kind):
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


_MARTIANS = {"ipv4": ("127.0.0.1", "0.0.0.0", "239.1.2.3"), "ipv6": ("::1", "::", "ff02::1")}


@pytest.mark.parametrize("number", range(3), ids=("loopback", "unspecified", "multicast"))
def test_no_packet_goes_to_an_address_that_is_no_sender(
    datapath: Datapath, kind: Kind, number: int
):
    martian = pod(kind)._replace(address=_MARTIANS[str(kind.net)][number])
    request = kind.frame(martian, cluster_ip(datapath, kind))
    assert_untouched(datapath, "lb_pod_ingress", request)


# No more than the kernel would send


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
def test_path_mtus_are_reported_without_limit(
    datapath: Datapath, programs: Loaded, node: Node, udp: Kind
):
    node_addresses(datapath, node)
    frontend = node_port(datapath, udp, [remote_backend(datapath, udp)[1]])
    frame = bytes(with_df(udp.frame(client(udp), frontend, payload=bytes(OVERLAY_MTU))))
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


# Errors of routers


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

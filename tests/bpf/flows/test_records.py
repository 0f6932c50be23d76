# SPDX-License-Identifier: Apache-2.0
"""The records in lb_flows for flows at tc, and for refused packets."""

import time
from sys import byteorder

import pytest

from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.layout.enums import (
    DropReason,
    FlowEnd,
    FlowEvent,
    FlowLost,
    FlowPath,
    FlowSource,
    NetnsFlag,
)
from ebpflb.dataplane.layout.structs import LbAddr, LbFlowRecord
from ebpflb.dataplane.view.counts import sums
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import SERVICE, Datapath, addr
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, SEQUENCE, End, Kind
from tests.bpf.harness.ring import ALL_EVENTS, Ring
from tests.bpf.harness.services import cluster_ip, local_backend, pod, remote_backend

ACKED = SEQUENCE + 1
SECOND = 1_000_000_000


def exchange(datapath: Datapath, tcp: Kind, frontend: End, backend: End, ways: str) -> None:
    """Packets of one flow: `>` and `<` with their flags. FINs get the matching ACK numbers."""
    for way in ways.split():
        flags, ack = way[1:], ACKED if "A" in way else 0
        if way[0] == ">":
            packet = tcp.frame(pod(tcp), frontend, flags, payload=b"", ack=ack)
            datapath.run("lb_pod_ingress", packet)
        else:
            packet = tcp.frame(backend, pod(tcp), flags, payload=b"", ack=ack)
            datapath.run("lb_pod_egress", packet)


ENDINGS = {
    ">S <SA >A >FA <FA >A": (FlowEnd.LB_END_CLOSED, 4, 2),
    ">S <SA >A <FA >FA <A": (FlowEnd.LB_END_CLOSED, 3, 3),
    ">S <SA >A <RA >RA": (FlowEnd.LB_END_RESET, 2, 2),
    ">S <SA >A >R <RA": (FlowEnd.LB_END_RESET, 3, 1),
    # The backend had an earlier connection in TIME_WAIT: one flow that began twice.
    ">S <A >R >S <SA >A >FA <FA >A": (FlowEnd.LB_END_CLOSED, 6, 3),
    ">S <RA": (FlowEnd.LB_END_BACKEND_REFUSED, 1, 1),
}


@pytest.mark.parametrize("ways", ENDINGS)
def test_a_flow_is_reported_when_it_begins_and_once_when_it_ends(
    datapath: Datapath, ring: Ring, tcp: Kind, ways: str
):
    backend, index = remote_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    exchange(datapath, tcp, frontend, backend, ways)
    start, record = ring.take()
    end, sent, received = ENDINGS[ways]
    assert (start.event, record.event) == (FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END)
    assert FlowEnd(record.end) is end
    assert (record.original.packets, record.reply.packets) == (sent, received)
    for each in (start, record):
        assert (each.path, each.source) == (FlowPath.LB_PATH_TC, FlowSource.LB_FROM_THIS_NODE)
        assert (each.client, each.client_port) == (addr(pod(tcp).address), pod(tcp).port)
        assert (each.frontend, each.frontend_port) == (addr(frontend.address), frontend.port)
        assert (each.backend_addr, each.backend_port) == (addr(backend.address), backend.port)
        assert (each.service, each.backend, each.proto) == (SERVICE, index, tcp.proto)
    failed = datapath.all_counts("lb_count_back", index).failed
    assert failed == (end is FlowEnd.LB_END_BACKEND_REFUSED)


@pytest.mark.parametrize("ways", [">S", ">S <SA >A"])
def test_a_flow_ends_when_its_client_begins_another_in_its_place(
    datapath: Datapath, ring: Ring, kind: Kind, ways: str
):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    histograms = list(sums(datapath.maps["lb_histograms"]))
    exchange(datapath, kind, frontend, backend, ways)
    datapath.write_backend(index, backend, kind.proto, serial=2)
    is_kept = bool(datapath.established())
    if is_kept:
        datapath.wait_a_second()
        exchange(datapath, kind, frontend, backend, ">S")
        datapath.wait_a_second()
    exchange(datapath, kind, frontend, backend, ">S")
    first, second, end = ring.take()
    assert (first.event, second.event) == (FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_START)
    assert (end.event, end.end) == (FlowEvent.LB_FLOW_END, FlowEnd.LB_END_REPLACED)
    assert (first.serial, second.serial, end.serial) == (1, 2, 1)
    sent = ways.count(">") + is_kept
    assert (end.original.packets, end.reply.packets) == (sent, ways.count("<"))
    assert (end.client, end.client_port) == (addr(pod(kind).address), pod(kind).port)
    assert list(sums(datapath.maps["lb_histograms"])) == histograms


@pytest.mark.parametrize(
    ("ways", "is_told"),
    [(">S", True), (">S >S", True), (">S <SA", False), (">S <SA >A", False), (">S <RA", False)],
)
def test_the_agent_reports_a_connection_without_an_answer(
    datapath: Datapath, ring: Ring, tcp: Kind, ways: str, *, is_told: bool
):
    ahead, told = 0, list[bytes]()
    expiry = Expiry(
        datapath.maps, clock=lambda: time.monotonic_ns() + ahead * SECOND, tell=told.extend
    )
    backend, index = remote_backend(datapath, tcp)
    exchange(datapath, tcp, cluster_ip(datapath, tcp, [index]), backend, ways)
    (start, *_) = ring.take()
    for seconds, expected in ((10, 0), (20, is_told), (30, 0)):
        ahead = seconds
        expiry.step()
        records = [LbFlowRecord.from_buffer_copy(each) for each in told]
        told.clear()
        assert [each.end for each in records] == [FlowEnd.LB_END_NO_ANSWER] * expected
        for each in records:
            assert (each.event, each.path) == (FlowEvent.LB_FLOW_END, FlowPath.LB_PATH_TC)
            assert (each.started, each.client) == (start.time, start.client)
            assert (each.service, each.backend) == (SERVICE, index)


def test_what_is_refused_is_reported_with_its_reason(datapath: Datapath, ring: Ring, kind: Kind):
    frontend = cluster_ip(datapath, kind, [])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    (record,) = ring.take()
    assert record.event == FlowEvent.LB_FLOW_REFUSED
    assert record.reason == DropReason.LB_DROP_NO_ENDPOINT
    assert (record.service, record.backend) == (SERVICE, 0)
    assert (record.client, record.frontend) == (addr(pod(kind).address), addr(frontend.address))


# How processes of the host are identified before their sockets have an address.
HOST = {True: addr("192.0.2.1"), False: addr("2001:db8:2::1")}


def namespace_of(machine: Node, kind: Kind) -> LbAddr:
    """How a pod is identified at that point."""
    with machine.entered():
        cookie = own_cookie()
    family = 4 if kind.net is IPV4 else 6
    return LbAddr.from_buffer_copy(family.to_bytes(8, "big") + cookie.to_bytes(8, byteorder))


@pytest.mark.parametrize("who", [NetnsFlag.LB_NETNS_HOST, 0], ids=["host", "pod"])
def test_what_a_connected_udp_socket_got_is_reported(
    datapath: Datapath, ring: Ring, asker: Asker, machine: Node, udp: Kind, who: int
):
    with machine.entered():
        say_who_asks(datapath.maps, who)
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    assert asker.connect(frontend, udp.proto) == backend
    start, end = ring.take()
    client = HOST[udp.net is IPV4] if who else namespace_of(machine, udp)
    assert (start.event, end.event) == (FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END)
    assert end.end == FlowEnd.LB_END_CLOSED
    for each in (start, end):
        assert (each.path, each.proto, each.client_port) == (FlowPath.LB_PATH_SOCKET, udp.proto, 0)
        assert each.client == client
        assert (each.frontend, each.frontend_port) == (addr(frontend.address), frontend.port)
        assert (each.backend_addr, each.backend_port) == (addr(backend.address), backend.port)
        assert (each.service, each.backend) == (SERVICE, index)


def test_of_udp_sockets_that_are_not_sampled_nothing_is_reported(
    datapath: Datapath, ring: Ring, asker: Asker, udp: Kind
):
    datapath.settings(flow_events=ALL_EVENTS, flow_sample=0)
    backend, index = remote_backend(datapath, udp)
    assert asker.connect(cluster_ip(datapath, udp, [index]), udp.proto) == backend
    assert ring.take() == []


@pytest.mark.parametrize("who", [NetnsFlag.LB_NETNS_HOST, 0], ids=["host", "pod"])
def test_what_is_refused_at_the_socket_is_reported(
    datapath: Datapath, ring: Ring, asker: Asker, machine: Node, tcp: Kind, who: int
):
    with machine.entered():
        say_who_asks(datapath.maps, who)
    frontend = cluster_ip(datapath, tcp, [])
    asker.connect(frontend, tcp.proto)
    (record,) = ring.take()
    assert (record.event, record.path) == (FlowEvent.LB_FLOW_REFUSED, FlowPath.LB_PATH_SOCKET)
    assert record.reason == DropReason.LB_DROP_NO_ENDPOINT
    assert record.client == (HOST[tcp.net is IPV4] if who else namespace_of(machine, tcp))
    assert (record.frontend, record.frontend_port) == (addr(frontend.address), frontend.port)


def test_a_udp_socket_of_the_host_that_connects_is_not_refused_yet(
    datapath: Datapath, ring: Ring, asker: Asker, machine: Node, udp: Kind
):
    # Earlier tests may have had a node's address with the same last bits.
    datapath.clear("lb_dest_filter")
    with machine.entered():
        say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_HOST)
    frontend = cluster_ip(datapath, udp, [])
    assert asker.connect(frontend, udp.proto) == frontend
    assert ring.take() == []


def lost(datapath: Datapath, why: FlowLost) -> int:
    value = datapath.maps["lb_flow_lost"].lookup(u32(why))
    return sum(memoryview(value or b"").cast("Q"))


@pytest.mark.usefixtures("whole_seconds")
def test_no_more_are_reported_in_a_second_than_was_asked_for(
    datapath: Datapath, ring: Ring, udp: Kind
):
    datapath.settings(flow_events=ALL_EVENTS, flow_rate=3)
    packet = udp.frame(pod(udp), cluster_ip(datapath, udp, []))
    begin = time.monotonic()
    for _ in range(20):
        datapath.run("lb_pod_ingress", packet)
    seconds = int(time.monotonic()) - int(begin) + 1
    told = len(ring.take())
    assert 3 <= told <= 3 * seconds
    assert lost(datapath, FlowLost.LB_LOST_RATE) == 20 - told


def test_of_flows_that_are_not_sampled_nothing_is_reported(
    datapath: Datapath, ring: Ring, tcp: Kind
):
    datapath.settings(flow_events=ALL_EVENTS, flow_sample=0)
    backend, index = local_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    exchange(datapath, tcp, frontend, backend, ">S <SA >A >FA <FA >A")
    assert ring.take() == []


# Enough refusals to use up this second's limit, which would affect the next test.
@pytest.mark.usefixtures("whole_seconds")
def test_what_does_not_fit_into_the_buffer_is_counted(datapath: Datapath, ring: Ring, udp: Kind):
    frontend = cluster_ip(datapath, udp, [])
    packet = udp.frame(pod(udp), frontend)
    room = datapath.maps["lb_flows"].max_entries // 144
    for _ in range(room + 10):
        datapath.run_bytes("lb_pod_ingress", bytes(packet), ifindex=1)
    told = len(ring.take())
    assert room - 1 <= told <= room
    assert lost(datapath, FlowLost.LB_LOST_FULL) == room + 10 - told

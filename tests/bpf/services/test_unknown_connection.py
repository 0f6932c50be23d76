# SPDX-License-Identifier: Apache-2.0
"""A packet of a connection that no node knows, to a Service: its sender gets a RST."""

from socket import AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, socket

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.sctp import SCTP, SCTPChunkAbort, SCTPChunkSACK
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import AddrFlag, DropReason, FlowEvent, SettingFlag
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, addr, assert_untouched
from tests.bpf.harness.fragments import HEADERS, with_headers
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    IPV4,
    NODE_MAC,
    SCTP_KINDS,
    SENDER_MAC,
    Kind,
    assert_same,
    built,
    filler,
)
from tests.bpf.harness.ring import ALL_EVENTS, Ring
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    external_ip,
    local_backend,
    node_port,
    pod,
)
from tests.bpf.services.load_balancer import allow, load_balancer
from tests.bpf.tc.offloads import partial, segmented

FLAGS = SettingFlag.LB_SETTING_RESETS
# The program and the address where a packet arrives.
WHERE = pytest.mark.parametrize(
    ("program", "make"),
    [
        ("lb_host_ingress", external_ip),
        ("lb_host_ingress", cluster_ip),
        ("lb_pod_ingress", cluster_ip),
    ],
)
ACK = 777_777
RESET = {DropReason.LB_DROP_UNKNOWN_CONNECTION: 1}
TCP_REPAIR, TRANSPARENT, TRANSPARENT6 = 19, 19, 75


@pytest.fixture
def resets(datapath: Datapath, addresses: None) -> Datapath:
    """As the agent sets it once netfilter no longer does NAT."""
    datapath.settings(flags=FLAGS)
    return datapath


def answer_to(kind: Kind, frame: Packet) -> Packet:
    """The RST of RFC 9293, 3.10.7.1."""
    sent = frame[TCP]
    answer = kind.packet(frame.payload.dst, frame.payload.src)
    answer.src, answer.dst = NODE_MAC, SENDER_MAC
    if kind.ip is IP:
        answer.payload.id = 0
    numbers = {"seq": sent.ack, "flags": "R"}
    if "A" not in sent.flags:
        length = len(sent.payload) + ("F" in sent.flags)
        numbers = {"seq": 0, "ack": sent.seq + length, "flags": "RA"}
    return built(answer / TCP(sport=sent.dport, dport=sent.sport, window=0, **numbers))


def assert_reset(datapath: Datapath, program: str, kind: Kind, frame: Packet) -> None:
    before = datapath.snapshot()
    result = datapath.run(program, frame)
    assert result.verdict is Verdict.REDIRECT
    assert_same(result.packet, answer_to(kind, frame))
    assert datapath.drops() == RESET
    after = datapath.snapshot()
    changed = {name for name, content in after.items() if content != before[name]}
    assert changed == {"lb_count_drop"}


# Who gets a RST


@WHERE
@pytest.mark.parametrize("flags", ["A", "PA", "FA", "SA", "F", "P", ""])
def test_its_sender_is_reset(resets: Datapath, tcp: Kind, program: str, make, flags: str):
    frame = tcp.frame(client(tcp), make(resets, tcp), flags, ack=ACK)
    assert_reset(resets, program, tcp, frame)


@WHERE
@pytest.mark.parametrize("flags", ["PA", "F"])
@pytest.mark.parametrize("length", [0, 1, 3, 1400])
def test_packets_of_any_length_are_answered(
    resets: Datapath, tcp: Kind, program: str, make, flags: str, length: int
):
    frame = tcp.frame(client(tcp), make(resets, tcp), flags, payload=filler(length))
    assert_reset(resets, program, tcp, frame)


def test_a_port_that_a_cluster_ip_does_not_have_resets_too(resets: Datapath, tcp: Kind):
    frontend = cluster_ip(resets, tcp)._replace(port=22)
    assert_reset(resets, "lb_pod_ingress", tcp, tcp.frame(pod(tcp), frontend, "A"))


def test_xdp_leaves_it_to_tc(resets: Datapath, node: Node, tcp: Kind):
    frame = bytes(tcp.frame(client(tcp), external_ip(resets, tcp), "A"))
    action, out = resets.run_xdp(frame, ifindex=node.uplink.ifindex)
    assert (action, out) == (XdpAction.PASS, frame)


def test_it_is_reported_as_refused_and_counts_for_no_connection(
    resets: Datapath, ring: Ring, tcp: Kind
):
    resets.settings(flags=FLAGS, flow_events=ALL_EVENTS, flow_sample=1)
    frontend = external_ip(resets, tcp)
    resets.run("lb_host_ingress", tcp.frame(client(tcp), frontend, "A"))
    resets.run("lb_host_ingress", tcp.frame(client(tcp), frontend, "R"))
    (record,) = ring.take()
    assert record.event == FlowEvent.LB_FLOW_REFUSED
    assert record.reason == DropReason.LB_DROP_UNKNOWN_CONNECTION
    assert (record.client, record.frontend) == (addr(tcp.net.client), addr(frontend.address))
    assert resets.counts("lb_count_front", 1) == (0, 0, 0)


# Who does not


@WHERE
def test_without_the_setting_it_passes(datapath: Datapath, tcp: Kind, program: str, make):
    for flags in ("A", "PA", "FA", "R"):
        assert_untouched(datapath, program, tcp.frame(client(tcp), make(datapath, tcp), flags))


@WHERE
@pytest.mark.parametrize("flags", ["R", "RA"])
def test_a_reset_is_dropped_in_silence(resets: Datapath, tcp: Kind, program: str, make, flags: str):
    frame = tcp.frame(client(tcp), make(resets, tcp), flags)
    assert resets.run(program, frame).verdict is Verdict.DROP
    assert resets.drops() == RESET


@pytest.mark.parametrize("program", ["lb_host_ingress", "lb_pod_ingress"])
def test_what_goes_to_an_address_of_the_node_passes(resets: Datapath, tcp: Kind, program: str):
    assert_untouched(resets, program, tcp.frame(client(tcp), node_port(resets, tcp), "A"))
    for make, role in (
        (external_ip, AddrFlag.LB_ADDR_EXTERNAL),
        (cluster_ip, AddrFlag.LB_ADDR_CLUSTER_IP),
    ):
        frontend = make(resets, tcp)
        resets.address(frontend.address, role | AddrFlag.LB_ADDR_NODE)
        assert_untouched(resets, program, tcp.frame(client(tcp), frontend, "A"))


def test_what_a_pod_sends_to_an_external_ip_may_be_an_answer_to_another_node(
    resets: Datapath, tcp: Kind
):
    frontend = external_ip(resets, tcp)
    for flags in ("SA", "A", "R"):
        assert_untouched(resets, "lb_pod_ingress", tcp.frame(pod(tcp), frontend, flags))


def test_a_port_that_an_external_ip_does_not_have_passes(resets: Datapath, tcp: Kind):
    frontend = external_ip(resets, tcp)._replace(port=22)
    assert_untouched(resets, "lb_host_ingress", tcp.frame(client(tcp), frontend, "A"))


def test_what_the_node_itself_sends_passes(resets: Datapath, tcp: Kind):
    assert_untouched(resets, "lb_host_egress", tcp.frame(client(tcp), cluster_ip(resets, tcp), "A"))


def test_a_flow_of_another_hook_passes(resets: Datapath, tcp: Kind):
    _, index = local_backend(resets, tcp)
    frontend = cluster_ip(resets, tcp, [index])
    opening = tcp.frame(pod(tcp), frontend)
    assert resets.run("lb_pod_ingress", opening).verdict is Verdict.PASS
    assert_untouched(resets, "lb_host_ingress", tcp.frame(pod(tcp), frontend, "A"))


def test_the_connection_of_a_process_of_the_node_passes(resets: Datapath, tcp: Kind):
    frontend, peer = external_ip(resets, tcp), client(tcp)
    is_ipv4 = tcp.net is IPV4
    with socket(AF_INET if is_ipv4 else AF_INET6) as made:
        # Its address is not the node's, and it sends nothing.
        level, option = (IPPROTO_IP, TRANSPARENT) if is_ipv4 else (IPPROTO_IPV6, TRANSPARENT6)
        made.setsockopt(level, option, 1)
        made.bind(frontend)
        made.setsockopt(IPPROTO_TCP, TCP_REPAIR, 1)
        made.connect(peer)
        assert_untouched(resets, "lb_host_ingress", tcp.frame(peer, frontend, "A"))
        other = peer._replace(port=peer.port + 1)
        assert_reset(resets, "lb_host_ingress", tcp, tcp.frame(other, frontend, "A"))


def test_a_client_outside_the_source_ranges_hears_nothing(resets: Datapath, tcp: Kind):
    allow(resets, "192.0.2.128/25", "2001:db8:ff::/48")
    frontend = load_balancer(resets, tcp, [])
    result = resets.run("lb_host_ingress", tcp.frame(client(tcp), frontend, "A"))
    assert result.verdict is Verdict.DROP
    assert resets.drops() == {DropReason.LB_DROP_SOURCE_RANGE: 1}


def test_an_opening_is_no_middle(resets: Datapath, tcp: Kind):
    _, index = local_backend(resets, tcp)
    frontend = cluster_ip(resets, tcp, [index])
    assert resets.run("lb_pod_ingress", tcp.frame(pod(tcp), frontend)).verdict is Verdict.PASS
    assert resets.run("lb_pod_ingress", tcp.frame(pod(tcp), frontend, "A")).verdict is Verdict.PASS
    assert not resets.drops()


@pytest.mark.parametrize("number", range(2))
def test_with_options_or_extension_headers_it_is_dropped(resets: Datapath, tcp: Kind, number: int):
    frame = tcp.frame(client(tcp), external_ip(resets, tcp), "A")
    frame = with_headers(frame, HEADERS[tcp.net.family][number])
    assert resets.run("lb_host_ingress", frame).verdict is Verdict.DROP
    assert resets.drops() == RESET


@pytest.mark.parametrize("sctp", SCTP_KINDS, ids=str)
def test_sctp_is_dropped(resets: Datapath, ring: Ring, sctp: Kind):
    resets.settings(flags=FLAGS, flow_events=ALL_EVENTS, flow_sample=1)
    target = external_ip(resets, sctp)
    for chunk in (SCTPChunkSACK(), SCTPChunkAbort()):
        header = SCTP(sport=client(sctp).port, dport=target.port, tag=7)
        frame = built(sctp.packet(sctp.net.client, target.address) / header / chunk)
        assert resets.run("lb_host_ingress", frame).verdict is Verdict.DROP
    assert resets.drops() == {DropReason.LB_DROP_UNKNOWN_CONNECTION: 2}
    (record,) = ring.take()
    assert record.event == FlowEvent.LB_FLOW_DROPPED


# With offloads


@pytest.mark.usefixtures("wired")
def test_it_is_right_where_a_checksum_or_segments_are_left_to_a_device(
    resets: Datapath, node: Node, tcp: Kind
):
    for tap, make, sender in (
        (node.uplink, external_ip, client(tcp)),
        (node.pod, cluster_ip, pod(tcp)),
    ):
        frame = tcp.frame(sender, make(resets, tcp), "PA", payload=filler(3000), ack=ACK)
        for sent in ((frame,), partial(frame), segmented(frame, 1000)):
            tap.send(*sent)
            assert_same(tap.receive(), answer_to(tcp, frame))


@pytest.mark.usefixtures("wired")
def test_it_leaves_a_device_without_ethernet(resets: Datapath, node: Node, tcp: Kind):
    frame = tcp.frame(client(tcp), external_ip(resets, tcp), "PA", ack=ACK)
    node.tunnel.send(frame)
    answer = answer_to(tcp, frame)
    answer.src, answer.dst = SENDER_MAC, NODE_MAC
    assert_same(node.tunnel.receive(), answer)

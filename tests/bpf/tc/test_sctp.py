# SPDX-License-Identifier: Apache-2.0
"""SCTP at tc: its checksum covers the whole packet, and its associations begin with INIT."""

import struct

import pytest
from scapy.layers.sctp import (
    SCTP,
    SCTPChunkAbort,
    SCTPChunkCookieAck,
    SCTPChunkCookieEcho,
    SCTPChunkHeartbeatReq,
    SCTPChunkInitAck,
    SCTPChunkSACK,
    SCTPChunkShutdownComplete,
    crc32c,
)
from scapy.packet import Packet, Raw

from ebpflb.dataplane.layout.enums import CtState, DropReason
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.errors import QUOTES, error
from tests.bpf.harness.node import OVERLAY_MAC, ROUTER_MAC, Node
from tests.bpf.harness.packets import (
    NODE_MAC,
    SCTP_KINDS,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    built,
    changed,
    fields,
    filler,
    source_of,
    target_of,
)
from tests.bpf.harness.services import (
    CLUSTER_PORT,
    client,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

LENGTHS = (0, 4, 5, 7, 8, 63, 64, 65, 255, 256, 1023, 1024, 1367, 1368)
BY_FRAGMENTS = 0xFFFF
SCTP4 = SCTP_KINDS[0]
TAG = 7
COOKIE = SCTPChunkCookieEcho(cookie=b"four")


def chunk(kind: Kind, source: End, target: End, content: Packet) -> Packet:
    """A packet with one chunk."""
    header = SCTP(sport=source.port, dport=target.port, tag=TAG)
    return built(kind.packet(source.address, target.address) / header / content)


def unknown(length: int) -> bytes:
    """A chunk type that scapy does not know, which it therefore leaves unchanged."""
    return (b"\xfe" + filler(length))[:length]


def opened(datapath: Datapath, kind: Kind) -> tuple[End, End]:
    """An association of the pod: the frontend and the backend."""
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    reply = chunk(kind, backend, pod(kind), SCTPChunkInitAck(init_tag=TAG))
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))
    datapath.run("lb_pod_ingress", chunk(kind, pod(kind), frontend, COOKIE))
    return frontend, backend


@pytest.mark.parametrize("length", LENGTHS)
def test_the_checksum_is_right_behind_other_ports(datapath: Datapath, sctp: Kind, length: int):
    backend, index = remote_backend(datapath, sctp)
    frontend = cluster_ip(datapath, sctp, [index])
    request = sctp.frame(pod(sctp), frontend, payload=unknown(length))
    result = datapath.run("lb_pod_ingress", request)
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=backend))

    reply = chunk(sctp, backend, pod(sctp), SCTPChunkInitAck() / Raw(unknown(length)))
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))


@pytest.mark.parametrize("length", [*range(16, 90), 1399, 1400])
def test_a_packet_of_any_length_is_right(datapath: Datapath, sctp: Kind, length: int):
    frontend, backend = opened(datapath, sctp)
    packet = chunk(sctp, pod(sctp), frontend, Raw(b"\x03" + filler(length - 13)))
    sent = bytes(datapath.run("lb_pod_ingress", packet).packet)[-length:]
    assert sent[:4] == struct.pack("!HH", pod(sctp).port, backend.port)
    assert sent[8:12] == struct.pack("!I", crc32c(sent[:8] + bytes(4) + sent[12:]))
    assert sent[12:] == bytes(packet)[12 - length :]


def test_the_padding_of_the_link_does_not_count(datapath: Datapath, sctp: Kind):
    frontend, backend = opened(datapath, sctp)
    packet = chunk(sctp, pod(sctp), frontend, SCTPChunkCookieAck())
    sent = datapath.run("lb_pod_ingress", bytes(packet) + b"\xaa" * 13).packet
    assert bytes(sent)[: len(packet)] == bytes(changed(packet, target=backend))


def test_a_checksum_that_is_left_to_the_device_stays_zero(datapath: Datapath, sctp: Kind):
    backend, index = remote_backend(datapath, sctp)
    request = sctp.frame(pod(sctp), cluster_ip(datapath, sctp, [index]))
    request[SCTP].chksum = 0
    sent = datapath.run("lb_pod_ingress", built(request)).packet
    assert target_of(sent) == backend
    assert sent[SCTP].chksum == 0


def test_a_masqueraded_association_goes_both_ways(datapath: Datapath, node: Node, sctp: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, sctp)
    frontend = node_port(datapath, sctp, [index])
    request = sctp.frame(client(sctp), frontend)
    ifindex = node.uplink.ifindex
    sent = datapath.run("lb_host_ingress", request, ifindex=ifindex)
    assert sent.verdict is Verdict.REDIRECT
    source = source_of(sent.packet)
    assert source.address == sctp.net.overlay
    expected = changed(request, source=source, target=backend, hops=1)
    assert fields(sent.packet[SCTP]) == fields(expected[SCTP])

    reply = chunk(sctp, backend, source, SCTPChunkInitAck(init_tag=TAG))
    back = datapath.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)
    expected = changed(reply, source=frontend, target=client(sctp), hops=1)
    assert fields(back.packet[SCTP]) == fields(expected[SCTP])


def test_a_chain_of_packets_is_not_too_big(datapath: Datapath, node: Node, sctp: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, sctp)
    request = sctp.frame(client(sctp), node_port(datapath, sctp, [index]))
    sent = datapath.run(
        "lb_host_ingress", request, ifindex=node.uplink.ifindex, gso_size=BY_FRAGMENTS
    )
    assert sent.verdict is Verdict.REDIRECT
    assert target_of(sent.packet) == backend


@pytest.mark.usefixtures("wired")
def test_an_association_passes_the_node_on_the_wire(datapath: Datapath, node: Node, sctp: Kind):
    backend, index = remote_backend(datapath, sctp)
    frontend = node_port(datapath, sctp, [index])
    request = sctp.frame(client(sctp), frontend, payload=unknown(1001))
    node.uplink.send(request)
    sent = node.overlay.receive()
    source = source_of(sent)
    macs = (NODE_MAC, OVERLAY_MAC)
    assert_same(sent, changed(request, source=source, target=backend, hops=1, macs=macs))

    reply = chunk(sctp, backend, source, SCTPChunkInitAck(init_tag=TAG))
    node.overlay.send(reply)
    macs = (NODE_MAC, ROUTER_MAC)
    expected = changed(reply, source=frontend, target=client(sctp), hops=1, macs=macs)
    assert_same(node.uplink.receive(), expected)


@pytest.mark.usefixtures("wired")
def test_a_device_without_link_headers_has_the_checksum_in_place(
    datapath: Datapath, node: Node, sctp: Kind
):
    backend, index = remote_backend(datapath, sctp)
    frontend = node_port(datapath, sctp, [index])
    request = sctp.frame(client(sctp), frontend)
    node.tunnel.send(request)
    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    expected = changed(request, source=source_of(sent), target=backend, hops=1, macs=macs)
    assert_same(sent, expected)


def test_a_pod_reaches_itself(datapath: Datapath, node: Node, sctp: Kind):
    node_addresses(datapath, node)
    itself, index = local_backend(datapath, sctp, sctp.net.pod)
    request = sctp.frame(pod(sctp), cluster_ip(datapath, sctp, [index]))
    seen = datapath.run("lb_pod_ingress", request)
    assert seen.verdict is Verdict.REDIRECT
    turned = (NODE_MAC, SENDER_MAC)
    expected = changed(request, source=source_of(seen.packet), target=itself, macs=turned)
    assert_same(seen.packet, expected)


@pytest.mark.parametrize(
    "content",
    [
        COOKIE,
        SCTPChunkInitAck(init_tag=TAG),
        SCTPChunkSACK(),
        SCTPChunkHeartbeatReq(),
        SCTPChunkAbort(),
    ],
    ids=lambda content: content.name,
)
def test_only_an_init_opens_an_association(datapath: Datapath, sctp: Kind, content: Packet):
    _, index = remote_backend(datapath, sctp)
    frontend = cluster_ip(datapath, sctp, [index])
    assert_untouched(datapath, "lb_pod_ingress", chunk(sctp, pod(sctp), frontend, content))


def test_a_repeated_init_keeps_its_backend(datapath: Datapath, sctp: Kind):
    backends = [remote_backend(datapath, sctp, sctp.net.remote)[1]]
    backends += [datapath.backend(End(sctp.net.remote, 9000 + i), sctp.proto) for i in range(40)]
    request = sctp.frame(pod(sctp), cluster_ip(datapath, sctp, backends))
    seen = {target_of(datapath.run("lb_pod_ingress", request).packet) for _ in range(20)}
    assert len(seen) == 1


def test_a_handshake_establishes_an_association(datapath: Datapath, sctp: Kind):
    opened(datapath, sctp)
    assert len(datapath.established()) == 2
    assert not datapath.short()


def test_a_cookie_with_a_made_up_tag_establishes_nothing(datapath: Datapath, sctp: Kind):
    backend, index = remote_backend(datapath, sctp)
    frontend = cluster_ip(datapath, sctp, [index])
    datapath.run("lb_pod_ingress", sctp.frame(pod(sctp), frontend))
    answer = chunk(sctp, backend, pod(sctp), SCTPChunkInitAck(init_tag=TAG + 1))
    datapath.run("lb_pod_egress", answer)
    datapath.run("lb_pod_ingress", chunk(sctp, pod(sctp), frontend, COOKIE))
    assert not datapath.established()
    assert len(datapath.short()) == 2


def test_an_established_association_outlives_its_endpoint(datapath: Datapath, sctp: Kind):
    frontend, backend = opened(datapath, sctp)
    datapath.retire_backend(1)
    packet = chunk(sctp, pod(sctp), frontend, SCTPChunkSACK())
    assert_same(datapath.run("lb_pod_ingress", packet).packet, changed(packet, target=backend))


@pytest.mark.parametrize(
    "content", [SCTPChunkAbort(), SCTPChunkShutdownComplete()], ids=lambda content: content.name
)
def test_an_association_ends(datapath: Datapath, sctp: Kind, content: Packet):
    frontend, backend = opened(datapath, sctp)
    packet = chunk(sctp, backend, pod(sctp), content)
    assert_same(datapath.run("lb_pod_egress", packet).packet, changed(packet, source=frontend))
    assert not datapath.established()
    assert all(state & CtState.LB_CT_CLOSED for state in datapath.states())


def test_a_frontend_without_endpoints_refuses(datapath: Datapath, sctp: Kind):
    request = sctp.frame(pod(sctp), cluster_ip(datapath, sctp))
    result = datapath.run("lb_pod_ingress", request)
    assert result.verdict is Verdict.REDIRECT
    assert datapath.drops() == {DropReason.LB_DROP_NO_ENDPOINT: 1}
    wanted = error(sctp, sctp.net.cluster_ip, request, transport=16)
    assert bytes(result.packet)[-16:] == bytes(wanted)[-16:]
    assert fields(result.packet.payload.payload) == fields(wanted.payload.payload)


def test_the_same_port_of_tcp_is_another_frontend(datapath: Datapath, sctp: Kind, tcp: Kind):
    frontend = cluster_ip(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    if tcp.net is sctp.net:
        datapath.run("lb_pod_ingress", sctp.frame(pod(sctp), frontend))
        assert datapath.drops() == {DropReason.LB_DROP_UNKNOWN_PORT: 1}


@pytest.mark.parametrize("transport", QUOTES)
def test_an_error_quotes_what_the_sender_sent(datapath: Datapath, sctp: Kind, transport: int):
    backend, index = remote_backend(datapath, sctp)
    frontend = cluster_ip(datapath, sctp, [index])
    request = sctp.frame(pod(sctp), frontend)
    sent = datapath.run("lb_pod_ingress", request).packet
    about = error(sctp, backend.address, sent, transport=transport)
    heard = datapath.run("lb_pod_egress", about).packet
    quoted = request.copy()
    quoted[SCTP].chksum = sent[SCTP].chksum
    assert_same(heard, error(sctp, frontend.address, built(quoted), transport=transport))


def fragment(packet: Packet) -> bytes:
    """The packet as the first fragment of an IPv4 datagram."""
    changed_packet = packet.copy()
    changed_packet.payload.flags = "MF"
    del changed_packet.payload.chksum
    return bytes(built(changed_packet))


def test_a_first_fragment_is_translated_if_its_ports_stay(datapath: Datapath):
    sctp = SCTP4
    backend = End(sctp.net.remote, CLUSTER_PORT)
    frontend = cluster_ip(datapath, sctp, [datapath.backend(backend, sctp.proto)])
    packet = sctp.frame(pod(sctp), frontend)
    result = datapath.run("lb_pod_ingress", fragment(packet))
    assert target_of(result.packet) == backend
    assert result.packet[SCTP].chksum == packet[SCTP].chksum


def test_a_first_fragment_is_dropped_if_they_do_not(datapath: Datapath):
    _, index = remote_backend(datapath, SCTP4)
    packet = SCTP4.frame(pod(SCTP4), cluster_ip(datapath, SCTP4, [index]))
    result = datapath.run("lb_pod_ingress", fragment(packet))
    assert result.verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_REWRITE: 1}

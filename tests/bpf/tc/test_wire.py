# SPDX-License-Identifier: Apache-2.0
"""The programs attached to devices, frames in, frames out: what a test-run cannot show."""

import socket
import struct

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from ebpflb.model.address import Family, Protocol
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import (
    BEHIND_TUNNEL,
    NO_NEIGHBOUR,
    OVERLAY_MAC,
    POD_MAC,
    ROUTER_MAC,
    TUNNEL_CLIENT,
    Node,
    Tap,
)
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    source_of,
    target_of,
)
from tests.bpf.harness.services import (
    CLIENT_PORT,
    client,
    cluster_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
)

pytestmark = pytest.mark.usefixtures("wired")


# A backend on another node


def test_a_request_leaves_for_another_node_and_its_reply_for_the_client(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    node.uplink.send(request)
    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    source = source_of(sent)
    assert_same(sent, changed(request, source=source, target=backend, hops=1, macs=macs))

    reply = kind.frame(backend, source, "SA")
    node.overlay.send(reply)
    macs = (NODE_MAC, ROUTER_MAC)
    expected = changed(reply, source=frontend, target=client(kind), hops=1, macs=macs)
    assert_same(node.uplink.receive(), expected)


def test_an_unknown_neighbour_is_asked_for(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind, NO_NEIGHBOUR[kind.net.remote])
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    node.uplink.send(request)
    answer_neighbour_request(node.overlay)

    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    expected = changed(request, source=source_of(sent), target=backend, hops=1, macs=macs)
    node.forget_neighbours()
    assert_same(sent, expected)


def answer_neighbour_request(tap: Tap) -> None:
    """Answer neighbour discovery for any address with OVERLAY_MAC."""
    asked = tap.await_frame(lambda packet: ARP in packet or ICMPv6ND_NS in packet)
    if ARP in asked:
        question = asked[ARP]
        answer: Packet = ARP(
            op="is-at",
            hwsrc=OVERLAY_MAC,
            psrc=question.pdst,
            hwdst=question.hwsrc,
            pdst=question.psrc,
        )
    else:
        target = asked[ICMPv6ND_NS].tgt
        advert = ICMPv6ND_NA(tgt=target, R=0) / ICMPv6NDOptDstLLAddr(lladdr=OVERLAY_MAC)
        answer = IPv6(src=target, dst=asked[IPv6].src) / advert
    tap.send(Ether(src=OVERLAY_MAC, dst=asked.src) / answer)


# A backend on this node


def test_a_local_backend_and_its_client_see_each_other(datapath: Datapath, node: Node, kind: Kind):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    node.uplink.send(request)
    arrived = changed(request, target=backend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_same(node.pod.receive(), arrived)

    reply = kind.frame(backend, client(kind), "SA")
    node.pod.send(reply)
    answered = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, ROUTER_MAC))
    assert_same(node.uplink.receive(), answered)


def test_a_reply_leaves_by_the_device_that_the_request_came_in_by(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    frontend = End(kind.net.overlay, node_port(datapath, kind, [index]).port)
    node.overlay.send(kind.frame(client(kind), frontend))
    node.pod.receive()
    reply = kind.frame(backend, client(kind), "SA")
    node.pod.send(reply)

    answered = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, OVERLAY_MAC))
    assert_same(node.overlay.receive(), answered)
    assert node.uplink.is_silent()


def test_a_pod_reaches_itself(datapath: Datapath, node: Node, kind: Kind):
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    request = kind.frame(pod(kind), frontend)
    node.pod.send(request)
    seen = node.pod.receive()
    turned = (NODE_MAC, SENDER_MAC)
    assert_same(seen, changed(request, source=source_of(seen), target=itself, macs=turned))

    reply = kind.frame(itself, source_of(seen), "SA")
    node.pod.send(reply)
    answered = changed(reply, source=frontend, target=pod(kind), macs=turned)
    assert_same(node.pod.receive(), answered)


# Devices without Ethernet header


def tunnel_client(kind: Kind) -> End:
    return End(TUNNEL_CLIENT[kind.net.client], CLIENT_PORT)


def test_a_request_from_a_tunnel_leaves_for_another_node(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(tunnel_client(kind), frontend)
    node.tunnel.send(request)
    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    assert_same(sent, changed(request, source=source_of(sent), target=backend, hops=1, macs=macs))

    reply = kind.frame(backend, source_of(sent), "SA")
    node.overlay.send(reply)
    answered = changed(reply, source=frontend, target=tunnel_client(kind), hops=1)
    assert_same(node.tunnel.receive(), answered)


def test_a_request_from_a_tunnel_leaves_by_a_tunnel(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind, BEHIND_TUNNEL[kind.net.remote])
    request = kind.frame(tunnel_client(kind), node_port(datapath, kind, [index]))
    node.tunnel.send(request)
    sent = node.tunnel.receive()
    assert_same(sent, changed(request, source=source_of(sent), target=backend, hops=1))


def test_a_tunnels_client_reaches_a_local_backend(datapath: Datapath, node: Node, kind: Kind):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(tunnel_client(kind), frontend)
    node.tunnel.send(request)
    arrived = changed(request, target=backend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_same(node.pod.receive(), arrived)

    reply = kind.frame(backend, tunnel_client(kind), "SA")
    node.pod.send(reply)
    answered = changed(reply, source=frontend, hops=1)
    assert_same(node.tunnel.receive(), answered)


def test_a_reply_that_is_routed_into_a_tunnel_leaves_by_the_right_device(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    frontend = node_port(datapath, kind, [index])
    node.uplink.send(kind.frame(tunnel_client(kind), frontend))
    node.pod.receive()
    reply = kind.frame(backend, tunnel_client(kind), "SA")
    node.pod.send(reply)
    answered = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, ROUTER_MAC))
    assert_same(node.uplink.receive(), answered)
    assert node.tunnel.is_silent()


def test_a_tunnels_client_is_refused(datapath: Datapath, node: Node, kind: Kind):
    request = kind.frame(tunnel_client(kind), cluster_ip(datapath, kind))
    node.tunnel.send(request)
    error = node.tunnel.receive()
    assert (error.payload.src, error.payload.dst) == (request.payload.dst, request.payload.src)
    assert bytes(request.payload)[:28] in bytes(error)


# The host's own sockets, where no socket hook is attached


def host_socket(kind: Kind) -> socket.socket:
    """A socket at the node's address."""
    family = socket.AF_INET if kind.net.family is Family.IPV4 else socket.AF_INET6
    type_ = socket.SOCK_STREAM if kind.proto is Protocol.TCP else socket.SOCK_DGRAM
    made = socket.socket(family, type_)
    # Close with a RST: a later retransmission would disturb other tests.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.bind((kind.net.node, 0))
    made.settimeout(60)
    return made


def test_the_host_talks_to_a_cluster_ip(datapath: Datapath, node: Node, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    with host_socket(udp) as client:
        client.sendto(b"question", frontend)
        sent = node.overlay.receive()
        assert target_of(sent) == backend
        assert_valid(sent)
        node.overlay.send(udp.frame(backend, source_of(sent), payload=b"answer"))
        assert client.recvfrom(100)[0] == b"answer"
        assert client.getsockname()[:2] == source_of(sent)


def test_the_host_connects_to_a_cluster_ip(datapath: Datapath, node: Node, tcp: Kind):
    backend, index = remote_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    with host_socket(tcp) as client:
        client.setblocking(False)
        client.connect_ex(frontend)
        syn = node.overlay.receive()
        assert target_of(syn) == backend
        assert_valid(syn)
        answer = tcp.frame(backend, source_of(syn), "SA", payload=b"")
        answer[TCP].ack = syn[TCP].seq + 1
        node.overlay.send(changed(answer))
        assert node.overlay.receive()[TCP].flags == "A"
        assert client.getpeername()[:2] == frontend


def test_the_host_is_refused(datapath: Datapath, node: Node, kind: Kind):
    frontend = cluster_ip(datapath, kind)
    with host_socket(kind) as client, pytest.raises(ConnectionRefusedError):
        ask(client, frontend)


def ask(client: socket.socket, frontend: End) -> bytes:
    """A request and its reply."""
    client.connect(frontend)
    client.send(b"question")
    return client.recv(100)


def assert_valid(packet: Packet) -> None:
    """Its checksums are those that scapy computes."""
    assert_same(packet, changed(packet))


def test_what_is_forwarded_for_others_is_not_the_hosts_own(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    packet = kind.frame(pod(kind), frontend)
    node.bare.send(packet)
    macs = (NODE_MAC, ROUTER_MAC)
    assert_same(node.uplink.receive(), changed(packet, hops=1, macs=macs))


# Frames that a test-run refuses


def test_the_first_bytes_of_a_frame_alone_do_no_harm(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frame = bytes(kind.frame(client(kind), cluster_ip(datapath, kind, [index]), payload=b""))
    before = datapath.snapshot()
    for tap in node.taps:
        for length in range(15, len(frame)):
            tap.send(frame[:length])
    assert datapath.snapshot() == before
    assert all(tap.is_silent() for tap in node.taps)

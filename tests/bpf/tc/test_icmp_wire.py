# SPDX-License-Identifier: Apache-2.0
"""ICMP errors through attached programs: they leave towards the sender of the quoted packet."""

import socket
from collections.abc import Iterator

import pytest
from scapy.packet import Packet

from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.errors import TOO_BIG, UNREACHABLE, error
from tests.bpf.harness.node import OVERLAY_MAC, POD_MAC, ROUTER_MAC, TUNNEL_CLIENT, Node
from tests.bpf.harness.packets import (
    IPV4,
    IPV6,
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    built,
    changed,
    source_of,
    ttl_of,
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

NARROW = 1280
ROUTER = {IPV4: "172.16.0.2", IPV6: "fd00:16::2"}


def too_big(kind: Kind, source: str, quoted: Packet) -> Packet:
    """A router's error about a packet that is too big."""
    return error(kind, source, quoted, what=TOO_BIG, mtu=NARROW)


def one_hop_on(packet: Packet, macs: tuple[str, str]) -> Packet:
    """The frame one router later, with these MACs."""
    result = packet.copy()
    result.src, result.dst = macs
    network = result.payload
    network.setfieldval("ttl" if network.name == "IP" else "hlim", ttl_of(packet) - 1)
    network.fields.pop("chksum", None)
    return built(result)


def test_a_router_on_the_way_to_another_node_is_heard_outside(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    node.uplink.send(request)
    node.overlay.send(too_big(kind, ROUTER[kind.net], node.overlay.receive()))
    expected = too_big(kind, frontend.address, changed(request, hops=1))
    assert_same(node.uplink.receive(), one_hop_on(expected, (NODE_MAC, ROUTER_MAC)))


def test_a_router_on_the_way_to_the_client_is_heard_on_another_node(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    node.uplink.send(kind.frame(client(kind), node_port(datapath, kind, [index])))
    seen = source_of(node.overlay.receive())
    reply = kind.frame(backend, seen, "SA")
    node.overlay.send(reply)
    node.uplink.send(
        too_big(kind, "203.0.113.1" if kind.net is IPV4 else "2001:db8::1", node.uplink.receive())
    )
    expected = too_big(kind, seen.address, changed(reply, hops=1))
    assert_same(node.overlay.receive(), one_hop_on(expected, (NODE_MAC, OVERLAY_MAC)))


def test_a_pods_refusal_leaves_by_the_device_that_the_request_came_in_by(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    frontend = End(kind.net.overlay, node_port(datapath, kind, [index]).port)
    request = kind.frame(client(kind), frontend)
    node.overlay.send(request)
    node.pod.send(error(kind, backend.address, node.pod.receive()))
    expected = error(kind, frontend.address, changed(request, hops=1))
    assert_same(node.overlay.receive(), one_hop_on(expected, (NODE_MAC, OVERLAY_MAC)))
    assert node.uplink.is_silent()


def test_a_router_on_the_way_to_the_client_is_heard_in_the_pod(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    node.uplink.send(kind.frame(client(kind), node_port(datapath, kind, [index])))
    node.pod.receive()
    reply = kind.frame(backend, client(kind), "SA")
    node.pod.send(reply)
    source = kind.net.client
    node.uplink.send(too_big(kind, source, node.uplink.receive()))
    expected = too_big(kind, source, changed(reply, hops=1))
    assert_same(node.pod.receive(), one_hop_on(expected, (NODE_MAC, POD_MAC)))


def test_a_pod_that_reaches_itself_refuses_itself(datapath: Datapath, node: Node, kind: Kind):
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    request = kind.frame(pod(kind), frontend)
    node.pod.send(request)
    node.pod.send(error(kind, itself.address, node.pod.receive()))
    expected = error(kind, frontend.address, request)
    expected.src, expected.dst = NODE_MAC, SENDER_MAC
    assert_same(node.pod.receive(), expected)


def test_an_error_leaves_by_a_tunnel(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(End(TUNNEL_CLIENT[kind.net.client], CLIENT_PORT), frontend)
    node.tunnel.send(request)
    node.overlay.send(too_big(kind, ROUTER[kind.net], node.overlay.receive()))
    expected = too_big(kind, frontend.address, changed(request, hops=1))
    assert_same(node.tunnel.receive(), one_hop_on(expected, (SENDER_MAC, NODE_MAC)))


# The host's own sockets, where no socket hook is attached


@pytest.fixture
def asking(node: Node, udp: Kind) -> Iterator[socket.socket]:
    """A UDP socket at the node's address."""
    family = socket.AF_INET if udp.net.family is Family.IPV4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.bind((udp.net.node, 0))
        made.settimeout(60)
        yield made


def test_the_host_hears_that_it_is_refused(
    datapath: Datapath, node: Node, udp: Kind, asking: socket.socket
):
    backend, index = remote_backend(datapath, udp)
    asking.connect(cluster_ip(datapath, udp, [index]))
    asking.send(b"question")
    node.overlay.send(error(udp, backend.address, node.overlay.receive(), what=UNREACHABLE))
    with pytest.raises(ConnectionRefusedError):
        asking.recv(100)


def test_the_backend_hears_that_the_host_refuses(
    datapath: Datapath, node: Node, udp: Kind, asking: socket.socket
):
    backend, index = remote_backend(datapath, udp)
    asking.sendto(b"question", cluster_ip(datapath, udp, [index]))
    seen = source_of(node.overlay.receive())
    asking.close()
    reply = udp.frame(backend, seen)
    node.overlay.send(reply)
    answer = node.overlay.receive()
    assert (answer.payload.src, answer.payload.dst) == (seen.address, backend.address)
    assert bytes(reply.payload)[:28] in bytes(answer)

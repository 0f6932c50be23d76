# SPDX-License-Identifier: Apache-2.0
"""Tunnels on real devices: the other node's MAC address, and checksum and segmentation offload."""

import pytest
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.bpf.dsr.tunnel import OVERHEAD, pod_elsewhere, pod_here, served, unwrapped, wrapped
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import PEER_MAC, POD_MAC, ROUTER_MAC, TUNNEL_CLIENT, Node
from tests.bpf.harness.packets import NODE_MAC, SENDER_MAC, Kind, assert_same, changed, filler
from tests.bpf.harness.services import client
from tests.bpf.tc.offloads import partial, segmented

pytestmark = pytest.mark.usefixtures("attached")

MTU, HEADERS = 1500, {"ipv4": 40, "ipv6": 60}


def inner(kind: Kind, frame: Packet) -> Packet:
    """The packet in a tunnel, with its original link header."""
    link = Ether(src=SENDER_MAC, dst=NODE_MAC)
    return Ether(bytes(link / kind.ip(unwrapped(kind, frame).packet)))


def test_a_request_crosses_to_the_other_node(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    node.uplink.send(*partial(request))
    sent = node.uplink.receive()
    assert (sent.src, sent.dst) == (NODE_MAC, PEER_MAC)
    assert_same(inner(kind, sent), request)


def test_segments_of_a_long_packet_have_room_for_the_tunnel(dsr: Datapath, node: Node, tcp: Kind):
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    node.uplink.send(tcp.frame(client(tcp), frontend))
    node.uplink.receive()
    long = tcp.frame(client(tcp), frontend, "PA", payload=filler(4200))
    most = MTU - OVERHEAD[tcp.net] - HEADERS[str(tcp.net)]
    node.uplink.send(*segmented(long, most))
    got, sequence = b"", long[TCP].seq
    while len(got) < 4200:
        sent = node.uplink.receive()
        assert len(sent) <= 14 + MTU
        segment = inner(tcp, sent)[TCP]
        assert segment.seq == sequence + len(got)
        got += bytes(segment.payload)
        assert_same(inner(tcp, sent), changed(inner(tcp, sent)))
    assert got == bytes(long[TCP].payload)


def test_a_pod_gets_it_from_its_client_and_answers_it(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind, kind.net.pod)
    frontend = served(dsr, kind, index)
    request = kind.frame(client(kind), frontend)
    inside, offload = partial(request)
    tunnel = OVERHEAD[kind.net]
    node.uplink.send(
        wrapped(kind, inside, pod),
        offload._replace(checksum_start=offload.checksum_start + tunnel),
    )
    macs = (NODE_MAC, POD_MAC)
    assert_same(node.pod.receive(), changed(request, target=pod, hops=1, macs=macs))

    reply = kind.frame(pod, client(kind), "SA")
    node.pod.send(*partial(reply))
    macs = (NODE_MAC, ROUTER_MAC)
    assert_same(node.uplink.receive(), changed(reply, source=frontend, hops=1, macs=macs))


def test_a_device_without_link_headers_sends_and_takes_tunnels(
    dsr: Datapath, node: Node, kind: Kind
):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    far = client(kind)._replace(address=TUNNEL_CLIENT[kind.net.client])
    request = kind.frame(far, frontend)
    node.tunnel.send(request)
    assert_same(inner(kind, node.uplink.receive()), request)

    pod, _ = pod_here(dsr, kind, kind.net.pod)
    near = kind.frame(client(kind), frontend)
    node.tunnel.send(wrapped(kind, near, pod))
    macs = (NODE_MAC, POD_MAC)
    assert_same(node.pod.receive(), changed(near, target=pod, hops=1, macs=macs))

# SPDX-License-Identifier: Apache-2.0
"""The programs attached to devices: what a test-run cannot show. Frames go in, frames come out."""

import os
import socket
from collections.abc import Iterator

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from ebpflb.dataplane import libbpf
from ebpflb.dataplane.uapi import AttachType
from ebpflb.model.address import Family, Protocol
from tests.bpf.datapath import Datapath, Loaded
from tests.bpf.node import (
    BEHIND_TUNNEL,
    NO_NEIGHBOUR,
    OVERLAY_MAC,
    POD_MAC,
    ROUTER_MAC,
    TUNNEL_CLIENT,
    Node,
    Offload,
    Tap,
)
from tests.bpf.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    built,
    changed,
    source_of,
    target_of,
)
from tests.bpf.services import (
    CLIENT_PORT,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    remote_backend,
)
from tests.skips import kernel_lacks

NEEDS_CHECKSUM, TCP4_SEGMENTS, TCP6_SEGMENTS = 1, 1, 4


@pytest.fixture(autouse=True)
def attached(programs: Loaded, datapath: Datapath, node: Node) -> Iterator[None]:
    """Every device of the node with the programs that belong there."""
    node_addresses(datapath, node)
    hooks = {"host": (node.uplink, node.overlay), "pod": (node.pod,), "l3": (node.tunnel,)}
    links = [
        _attach(programs.programs[f"lb_{kind}_{direction}"], tap, direction)
        for kind, taps in hooks.items()
        for tap in taps
        for direction in ("ingress", "egress")
    ]
    yield
    for link in links:
        os.close(link)


def _attach(program: int, tap: Tap, direction: str) -> int:
    try:
        return libbpf.link_create(program, tap.ifindex, AttachType[f"TCX_{direction.upper()}"])
    except OSError as error:
        kernel_lacks("tcx", str(error))


def client(kind: Kind, port: int = CLIENT_PORT) -> End:
    return End(kind.net.client, port)


def pod(kind: Kind, port: int = CLIENT_PORT) -> End:
    return End(kind.net.pod, port)


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
    """Say that whoever is asked for has OVERLAY_MAC."""
    asked = tap.await_frame(lambda packet: ARP in packet or ICMPv6ND_NS in packet)
    if ARP in asked:
        question = asked[ARP]
        answer = ARP(
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


def test_a_local_backend_and_its_client_see_each_other(
    datapath: Datapath, node: Node, kind: Kind
):
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
    assert_same(
        sent, changed(request, source=source_of(sent), target=backend, hops=1, macs=macs)
    )

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

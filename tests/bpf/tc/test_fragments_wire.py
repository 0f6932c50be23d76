# SPDX-License-Identifier: Apache-2.0
"""Fragments, and headers outside the linear part, through attached programs and the stack."""

import socket
import subprocess
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6ExtHdrFragment
from scapy.packet import Packet

from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.fragments import HEADERS, fragments, with_headers
from tests.bpf.harness.node import (
    OVERLAY_MAC,
    OVERLAY_MTU,
    POD_MAC,
    ROUTER_MAC,
    Node,
    Offload,
    Tap,
)
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    filler,
    source_of,
    target_of,
)
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
)

LARGE = filler(2000)
_TABLE = "defragment"
_RULES = f"""
table inet {_TABLE} {{
    chain prerouting {{ type filter hook prerouting priority 0; meta length > 1500 counter; }}
    chain tracked {{ type filter hook output priority 0; ct state new; }}
}}
"""

pytestmark = pytest.mark.usefixtures("wired")


@pytest.fixture(params=["as they are", "reassembled on the way"])
def stack(request: pytest.FixtureRequest, node: Node) -> Iterator[None]:
    """The node's stack; with connection tracking it reassembles and refragments datagrams."""
    if request.param == "as they are":
        yield
        return
    subprocess.run(["nft", "-f", "-"], input=_RULES, text=True, check=True)
    yield
    has_seen_them = has_seen_whole_datagrams()
    subprocess.run(["nft", "delete", "table", "inet", _TABLE], check=True)
    assert has_seen_them


def has_seen_whole_datagrams() -> bool:
    listed = subprocess.run(
        ["nft", "list", "table", "inet", _TABLE], check=True, capture_output=True, text=True
    )
    return "counter packets 0" not in listed.stdout


def is_fragment(packet: Packet) -> bool:
    if IP in packet:
        return bool(packet[IP].frag or packet[IP].flags.MF)
    return IPv6ExtHdrFragment in packet


def send_all(tap: Tap, packets: list[Packet]) -> None:
    for packet in packets:
        tap.send(packet)


def receive_all(tap: Tap, number: int) -> list[Packet]:
    return [tap.await_frame(is_fragment) for _ in range(number)]


def number_of(piece: Packet) -> int:
    return int(piece[IP].id if IP in piece else piece[IPv6ExtHdrFragment].id)


def assert_pieces(received: list[Packet], whole: Packet) -> None:
    """Asserts that these are the fragments of the frame, whatever identification the stack
    chose.
    """
    expected = fragments(whole, number=number_of(received[0]))
    for piece, wanted in zip(received, expected, strict=True):
        assert_same(piece, wanted)


def test_fragments_leave_for_another_node_and_their_answer_for_the_client(
    datapath: Datapath, node: Node, udp: Kind
):
    backend, index = remote_backend(datapath, udp)
    frontend = node_port(datapath, udp, [index])
    request = udp.frame(client(udp), frontend, payload=LARGE)
    send_all(node.uplink, fragments(request))
    pieces = receive_all(node.overlay, 3)
    source, macs = source_of(fragment_head(pieces, udp)), (NODE_MAC, OVERLAY_MAC)
    assert_pieces(pieces, changed(request, source=source, target=backend, hops=1, macs=macs))

    reply = udp.frame(backend, source, payload=LARGE)
    send_all(node.overlay, fragments(reply))
    macs = (NODE_MAC, ROUTER_MAC)
    expected = changed(reply, source=frontend, target=client(udp), hops=1, macs=macs)
    assert_pieces(receive_all(node.uplink, 3), expected)


def fragment_head(pieces: list[Packet], kind: Kind) -> Packet:
    """The first fragment, without a fragment header."""
    first = pieces[0].copy()
    if kind.net.family == Family.IPV6:
        first.payload.payload = first[IPv6ExtHdrFragment].payload
    return first


def test_fragments_reach_a_pod_here_and_its_answer_the_client(
    datapath: Datapath, node: Node, udp: Kind, stack: None
):
    backend, index = local_backend(datapath, udp, udp.net.pod)
    frontend = node_port(datapath, udp, [index])
    request = udp.frame(client(udp), frontend, payload=LARGE)
    send_all(node.uplink, fragments(request))
    expected = changed(request, target=backend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_pieces(receive_all(node.pod, 3), expected)

    reply = udp.frame(backend, client(udp), payload=LARGE)
    send_all(node.pod, fragments(reply))
    expected = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, ROUTER_MAC))
    assert_pieces(receive_all(node.uplink, 3), expected)


def test_a_pods_fragments_reach_a_cluster_ip(
    datapath: Datapath, node: Node, udp: Kind, stack: None
):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    request = udp.frame(pod(udp), frontend, payload=LARGE)
    send_all(node.pod, fragments(request))
    expected = changed(request, target=backend, hops=1, macs=(NODE_MAC, OVERLAY_MAC))
    assert_pieces(receive_all(node.overlay, 3), expected)

    reply = udp.frame(backend, pod(udp), payload=LARGE)
    send_all(node.overlay, fragments(reply))
    expected = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_pieces(receive_all(node.pod, 3), expected)


def test_the_host_sends_and_gets_fragments(datapath: Datapath, node: Node, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    family = socket.AF_INET if udp.net.family is Family.IPV4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.bind((udp.net.node, 0))
        made.settimeout(60)
        # Too big for the overlay: the first time the host only learns its MTU.
        for _ in range(2):
            made.sendto(LARGE, frontend)
        pieces = receive_all(node.overlay, 2)
        assert all(len(piece.payload) <= OVERLAY_MTU for piece in pieces)
        first = fragment_head(pieces, udp)
        assert target_of(first) == backend
        answer = udp.frame(backend, source_of(first), payload=LARGE)
        send_all(node.overlay, fragments(answer))
        assert made.recvfrom(4000)[:1] == (LARGE,)


def test_a_tunnels_client_sends_and_gets_fragments(datapath: Datapath, node: Node, udp: Kind):
    backend, index = local_backend(datapath, udp, udp.net.pod)
    frontend = node_port(datapath, udp, [index])
    far = End({"198.51.100.9": "198.18.0.9"}.get(udp.net.client, "2001:db8:18::9"), 40000)
    request = udp.frame(far, frontend, payload=LARGE)
    send_all(node.tunnel, fragments(request))
    expected = changed(request, target=backend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_pieces(receive_all(node.pod, 3), expected)
    reply = udp.frame(backend, far, payload=LARGE)
    send_all(node.pod, fragments(reply))
    assert_pieces(receive_all(node.tunnel, 3), changed(reply, source=frontend, hops=1))


def test_headers_outside_the_linear_part_do_not_hide_a_packet(
    datapath: Datapath, node: Node, kind: Kind
):
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    for name in HEADERS[kind.net.family]:
        request = kind.frame(pod(kind), frontend, payload=filler(5000))
        node.pod.send(with_headers(request, name), Offload(header_length=14))
        seen = node.pod.await_frame(lambda packet: len(packet) > 1000)
        (entry,) = (e for e in datapath.short().values() if e.direction == 1)
        source = End(kind.net.node, entry.to.sport)
        turned = (NODE_MAC, SENDER_MAC)
        expected = changed(request, source=source, target=itself, macs=turned)
        assert_same(seen, with_headers(expected, name))

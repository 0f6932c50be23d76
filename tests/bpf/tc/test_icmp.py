# SPDX-License-Identifier: Apache-2.0
"""ICMP errors about translated packets reach the packet's sender, in terms of what it sent."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from ebpflb.dataplane.layout.enums import Direction
from ebpflb.model.address import Protocol
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.errors import (
    QUOTES,
    TIME_EXCEEDED,
    TOO_BIG,
    UNREACHABLE,
    error,
    network_length,
)
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    IPV4,
    IPV6,
    NODE_MAC,
    SENDER_MAC,
    Kind,
    Net,
    assert_same,
    built,
    changed,
    ttl_of,
)
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

ROUTER = {IPV4: "192.0.2.254", IPV6: "2001:db8:2::fe"}
# After a redirect to a neighbour, the kernel sets them.
FORWARDED, TURNED = (SENDER_MAC, NODE_MAC), (NODE_MAC, SENDER_MAC)
CHECKSUMS = ("chksum", "cksum")
# Version 2, and one object of four bytes of class 1.
EXTENSION = bytes.fromhex("20008c8f000801014d504c53")
# Quoted headers that the programs do not parse further.
STRANGE: dict[Net, list[tuple[str, int | str]]] = {
    IPV4: [
        ("version", 5),
        ("ihl", 4),
        ("ihl", 6),
        ("frag", 100),
        ("flags", "MF"),
        ("proto", 1),
        ("proto", 132),
    ],
    IPV6: [("version", 5), ("nh", 0), ("nh", 44), ("nh", 58), ("nh", 132)],
}


class Case(NamedTuple):
    """An error that arrives at a program, about `quoted`, which its receiver knows as `sent`.

    source: the new source of the error; "" if unchanged. macs: of an error that tc redirects, and
    hops: the number of routers it passes.
    """

    program: str
    ifindex: int
    quoted: Packet
    sent: Packet
    source: str = ""
    macs: tuple[str, str] | None = None
    hops: int = 0


Make = Callable[[Datapath, Node, Kind], Case]


def pods_request(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """A pod's request to a ClusterIP, refused on its way to the backend."""
    frontend = cluster_ip(datapath, kind, [remote_backend(datapath, kind)[1]])
    sent = kind.frame(pod(kind), frontend)
    quoted = datapath.run("lb_pod_ingress", sent).packet
    return Case("lb_pod_egress", node.pod.ifindex, quoted, sent, frontend.address)


def reply_to_pod(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """A backend's reply, rejected by the pod."""
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    sent = kind.frame(backend, pod(kind), "SA")
    quoted = datapath.run("lb_pod_egress", sent).packet
    return Case("lb_pod_ingress", node.pod.ifindex, quoted, sent)


def request_to_local(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """A request from outside, refused by the backend on this node."""
    frontend = node_port(datapath, kind, [local_backend(datapath, kind)[1]])
    sent = kind.frame(client(kind), frontend)
    ifindex = node.uplink.ifindex
    quoted = datapath.run("lb_host_ingress", sent, ifindex=ifindex).packet
    return Case("lb_host_egress", ifindex, quoted, sent, frontend.address)


def reply_of_local(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """The reply of a backend on this node, refused outside."""
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    ifindex = node.uplink.ifindex
    datapath.run("lb_host_ingress", kind.frame(client(kind), frontend), ifindex=ifindex)
    sent = kind.frame(backend, client(kind), "SA")
    quoted = datapath.run("lb_host_egress", sent, ifindex=ifindex).packet
    return Case("lb_host_ingress", ifindex, quoted, sent)


def request_to_remote(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """A request from outside, refused on its way to another node."""
    frontend = node_port(datapath, kind, [remote_backend(datapath, kind)[1]])
    sent = kind.frame(client(kind), frontend)
    quoted = datapath.run("lb_host_ingress", sent, ifindex=node.uplink.ifindex).packet
    ifindex = node.overlay.ifindex
    return Case("lb_host_ingress", ifindex, quoted, sent, frontend.address, FORWARDED, 1)


def reply_of_remote(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """The reply of a backend on another node, refused outside."""
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    ifindex = node.uplink.ifindex
    request = datapath.run("lb_host_ingress", kind.frame(client(kind), frontend), ifindex=ifindex)
    masqueraded = request.packet.payload
    sent = kind.frame(
        backend,
        client(kind)._replace(address=masqueraded.src, port=masqueraded.payload.sport),
        "SA",
    )
    quoted = datapath.run("lb_host_ingress", sent, ifindex=node.overlay.ifindex).packet
    return Case("lb_host_ingress", ifindex, quoted, sent, masqueraded.src, FORWARDED, 1)


def request_to_itself(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """A pod's request to a Service that leads back to the pod itself, refused."""
    frontend = cluster_ip(datapath, kind, [local_backend(datapath, kind, kind.net.pod)[1]])
    sent = kind.frame(pod(kind), frontend)
    quoted = datapath.run("lb_pod_ingress", sent).packet
    return Case("lb_pod_ingress", node.pod.ifindex, quoted, sent, frontend.address, TURNED)


def reply_to_itself(datapath: Datapath, node: Node, kind: Kind) -> Case:
    """The pod's reply to itself, refused."""
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    request = datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend)).packet.payload
    seen = pod(kind)._replace(address=request.src, port=request.payload.sport)
    sent = kind.frame(itself, seen, "SA")
    quoted = datapath.run("lb_pod_ingress", sent).packet
    return Case("lb_pod_ingress", node.pod.ifindex, quoted, sent, request.src, TURNED)


CASES = (
    pods_request,
    reply_to_pod,
    request_to_local,
    reply_of_local,
    request_to_remote,
    reply_of_remote,
    request_to_itself,
    reply_to_itself,
)


def name_of(make: Make) -> str:
    return make.__name__


@pytest.fixture(params=CASES, ids=name_of)
def case(request: pytest.FixtureRequest, datapath: Datapath, node: Node, kind: Kind) -> Case:
    """Each path of an error, in each family, about each protocol."""
    node_addresses(datapath, node)
    make: Make = request.param
    return make(datapath, node, kind)


@pytest.fixture(params=[pods_request, request_to_remote], ids=name_of)
def some(request: pytest.FixtureRequest, datapath: Datapath, node: Node, kind: Kind) -> Case:
    """One path through the stack, and one redirected by tc."""
    node_addresses(datapath, node)
    make: Make = request.param
    return make(datapath, node, kind)


def assert_translated(datapath: Datapath, case: Case, kind: Kind, **fields: object) -> None:
    """Asserts it for errors of the packet's target and of a router; neither leaves a flow
    behind.
    """
    sent = changed(case.sent, hops=ttl_of(case.sent) - ttl_of(case.quoted))
    for source in (case.quoted.payload.dst, ROUTER[kind.net]):
        arriving = error(kind, source, case.quoted, **fields)  # type: ignore[arg-type]
        before = datapath.snapshot()
        result = datapath.run(case.program, arriving, ifindex=case.ifindex)
        expected = error(kind, case.source or source, sent, **fields)  # type: ignore[arg-type]
        assert_same(result.packet, forwarded(expected, case))
        assert result.verdict is (Verdict.REDIRECT if case.macs else Verdict.PASS)
        assert datapath.snapshot() == before


def forwarded(packet: Packet, case: Case) -> Packet:
    """The error as it leaves."""
    result = packet.copy()
    if case.macs:
        result.src, result.dst = case.macs
    network = result.payload
    network.setfieldval("ttl" if network.name == "IP" else "hlim", 64 - case.hops)
    if network.name == "IP":
        del network.chksum
    return built(result)


def test_an_error_reaches_whom_it_concerns(datapath: Datapath, kind: Kind, case: Case):
    assert_translated(datapath, case, kind, what=UNREACHABLE)
    assert_translated(datapath, case, kind, what=TIME_EXCEEDED)
    assert_translated(datapath, case, kind, what=TOO_BIG, mtu=1280)


def test_quotes_of_any_length_are_translated(datapath: Datapath, kind: Kind, case: Case):
    for transport in QUOTES:
        assert_translated(datapath, case, kind, transport=transport)


def test_what_follows_the_quote_stays(datapath: Datapath, kind: Kind, case: Case):
    """RFC 4884: the quote is padded with zeros, and extensions follow."""
    sent = changed(case.sent, hops=ttl_of(case.sent) - ttl_of(case.quoted))
    source, words = case.quoted.payload.dst, 128 // (4 if kind.ip is IP else 8)
    arriving, expected = (
        extended(error(kind, end, packet, what=TIME_EXCEEDED), words)
        for end, packet in ((source, case.quoted), (case.source or source, sent))
    )
    result = datapath.run(case.program, arriving, ifindex=case.ifindex)
    assert_same(result.packet, forwarded(expected, case))


def extended(packet: Packet, words: int) -> Packet:
    """The error with a quote of 128 bytes and one object behind it."""
    header = packet.payload.payload
    header.length = words
    quote = bytes(header.payload).ljust(128, b"\0")
    header.remove_payload()
    return recomputed(packet / Raw(quote + EXTENSION))


def recomputed(packet: Packet) -> Packet:
    """With lengths and checksums as scapy computes them."""
    network = packet.payload
    for layer, names in ((network, ("len", "plen", "chksum")), (network.payload, CHECKSUMS)):
        for name in names:
            layer.fields.pop(name, None)
    return built(packet)


@pytest.mark.parametrize("make", CASES, ids=name_of)
def test_udp_without_checksum_stays_without(datapath: Datapath, node: Node, make: Make):
    node_addresses(datapath, node)
    kind = Kind(IPV4, Protocol.UDP)
    case = make(datapath, node, kind)
    bare = case._replace(quoted=without_csum(case.quoted), sent=without_csum(case.sent))
    assert_translated(datapath, bare, kind)


def without_csum(packet: Packet) -> Packet:
    """With the UDP checksum that means none."""
    result = packet.copy()
    result[UDP].chksum = 0
    return built(result)


# Errors that do not match in every respect


def test_a_quote_that_is_cut_off_passes_untouched(datapath: Datapath, kind: Kind, some: Case):
    for transport in range(8):
        cut = error(kind, some.quoted.payload.dst, some.quoted, transport=transport)
        assert_untouched(datapath, some.program, cut, ifindex=some.ifindex)


def test_an_error_to_another_host_passes_untouched(datapath: Datapath, kind: Kind, some: Case):
    for target in (kind.net.node, kind.net.overlay, kind.net.cluster_ip, kind.net.remote):
        if target != some.quoted.payload.src:
            astray = error(kind, ROUTER[kind.net], some.quoted, target=target)
            assert_untouched(datapath, some.program, astray, ifindex=some.ifindex)


def test_an_error_about_an_unknown_packet_passes_untouched(
    datapath: Datapath, kind: Kind, some: Case
):
    for end in ("sport", "dport"):
        strange = some.quoted.copy()
        strange.payload.payload.setfieldval(end, 7)
        packet = error(kind, ROUTER[kind.net], strange)
        assert_untouched(datapath, some.program, packet, ifindex=some.ifindex)


def test_an_error_about_half_a_flow_passes_untouched(datapath: Datapath, kind: Kind, some: Case):
    """By then, the other half may belong to another flow."""
    for key, entry in datapath.short().items():
        if entry.direction == Direction.LB_DIR_ORIGINAL:
            datapath.delete_entry(key)
    packet = error(kind, ROUTER[kind.net], some.quoted)
    assert_untouched(datapath, some.program, packet, ifindex=some.ifindex)


def test_an_error_at_another_hook_passes_untouched(datapath: Datapath, kind: Kind, some: Case):
    packet = error(kind, ROUTER[kind.net], some.quoted)
    for program in ("lb_pod_ingress", "lb_pod_egress", "lb_host_ingress", "lb_host_egress"):
        if program != some.program:
            assert_untouched(datapath, program, packet, ifindex=some.ifindex)


def test_other_messages_with_a_packet_in_them_pass_untouched(
    datapath: Datapath, kind: Kind, some: Case
):
    frame = bytearray(bytes(error(kind, ROUTER[kind.net], some.quoted)))
    errors = {3, 11, 12} if kind.ip is IP else {1, 2, 3, 4}
    for number in {*range(20), 128, 129, 133, 134, 135, 136, 137} - errors:
        frame[14 + network_length(kind)] = number
        assert_untouched(datapath, some.program, Ether(bytes(frame)), ifindex=some.ifindex)


def test_an_unusual_quote_passes_untouched(datapath: Datapath, kind: Kind, some: Case):
    for name, value in STRANGE[kind.net]:
        network = some.quoted.payload.copy()
        network.setfieldval(name, value)
        packet = error(kind, ROUTER[kind.net], Ether() / network)
        assert_untouched(datapath, some.program, packet, ifindex=some.ifindex)


def test_an_error_at_the_end_of_its_time_is_not_forwarded(
    datapath: Datapath, kind: Kind, some: Case
):
    packet = error(kind, ROUTER[kind.net], some.quoted)
    packet.payload.setfieldval("ttl" if kind.ip is IP else "hlim", 1)
    result = datapath.run(some.program, recomputed(packet), ifindex=some.ifindex)
    assert result.verdict is Verdict.PASS
    assert (bytes(result.packet) == bytes(recomputed(packet))) is bool(some.hops)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picture=st.data())
def test_an_error_with_some_bytes_changed_does_no_harm(
    datapath: Datapath, kind: Kind, some: Case, picture: Any
):
    frame = bytearray(bytes(error(kind, ROUTER[kind.net], some.quoted)))
    places = st.integers(min_value=14 + network_length(kind), max_value=len(frame) - 1)
    for _ in range(picture.draw(st.integers(min_value=1, max_value=4))):
        frame[picture.draw(places)] = picture.draw(st.integers(min_value=0, max_value=255))
    before = datapath.snapshot()
    result = datapath.run(some.program, bytes(frame), ifindex=some.ifindex)
    assert result.verdict in (Verdict.PASS, Verdict.REDIRECT)
    assert len(result.packet) == len(frame)
    assert datapath.snapshot() == before

# SPDX-License-Identifier: Apache-2.0
"""fragment.h: later fragments are translated like the first fragment of their datagram."""

from collections.abc import Sequence

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import AddrFlag, CtState, DropReason
from ebpflb.dataplane.layout.programs import TC_PROGRAMS
from ebpflb.dataplane.layout.structs import LbFragment
from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath, Result, Verdict, assert_untouched
from tests.bpf.harness.fragments import IDENTIFICATION, SIZE, fragments
from tests.bpf.harness.node import NARROW_ROUTE, Node
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    filler,
    source_of,
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

LARGE = filler(2000)
ETHERNET = sorted(name for name in TC_PROGRAMS if "l3" not in name)


def run_each(
    datapath: Datapath, program: str, packets: list[Packet], ifindex: int = 1
) -> list[Result]:
    return [datapath.run(program, packet, ifindex=ifindex) for packet in packets]


def assert_become(
    results: list[Result], expected: list[Packet], verdict: Verdict = Verdict.PASS
) -> None:
    assert [result.verdict for result in results] == [verdict] * len(expected)
    for result, packet in zip(results, expected, strict=True):
        assert_same(result.packet, packet)


def established(datapath: Datapath, kind: Kind, source: End, frontend: End, hook: str) -> None:
    """A TCP flow needs its SYN, which is never fragmented."""
    datapath.run(hook, kind.frame(source, frontend))


# Every hook


def assert_translated_both_ways(
    datapath: Datapath, kind: Kind, ends: Sequence[End], programs: str
) -> None:
    """Fragments of a request and of its answer. ends: the client, the frontend and the backend."""
    source, frontend, backend = ends
    established(datapath, kind, source, frontend, f"{programs}_ingress")
    request = kind.frame(source, frontend, "A", payload=LARGE)
    results = run_each(datapath, f"{programs}_ingress", fragments(request))
    assert_become(results, fragments(changed(request, target=backend)))

    reply = kind.frame(backend, source, "A", payload=LARGE)
    results = run_each(datapath, f"{programs}_egress", fragments(reply))
    assert_become(results, fragments(changed(reply, source=frontend)))


def test_fragments_of_a_pod_are_translated_and_those_of_the_answer_too(
    datapath: Datapath, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    assert_translated_both_ways(datapath, kind, [pod(kind), frontend, backend], "lb_pod")


def test_a_first_fragment_opens_a_flow(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    request = udp.frame(pod(udp), frontend, payload=LARGE)
    pieces = fragments(request)
    results = run_each(datapath, "lb_pod_ingress", pieces)
    assert_become(results, fragments(changed(request, target=backend)))
    entry = datapath.entry(pod(udp), frontend, udp.proto)
    assert (entry.packets, entry.bytes) == (3, len(LARGE))


def test_fragments_from_outside_reach_a_backend_here(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    assert_translated_both_ways(datapath, kind, [client(kind), frontend, backend], "lb_host")


def test_fragments_leave_for_another_node_and_come_back(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    frontend, ifindex = node_port(datapath, kind, [index]), node.uplink.ifindex
    first = datapath.run("lb_host_ingress", kind.frame(client(kind), frontend), ifindex=ifindex)
    source = source_of(first.packet)
    request = kind.frame(client(kind), frontend, "A", payload=LARGE)
    results = run_each(datapath, "lb_host_ingress", fragments(request), ifindex)
    expected = changed(request, source=source, target=backend, hops=1)
    assert_become(results, fragments(expected), Verdict.REDIRECT)

    reply = kind.frame(backend, source, "A", payload=LARGE)
    results = run_each(datapath, "lb_host_ingress", fragments(reply), node.overlay.ifindex)
    expected = changed(reply, source=frontend, target=client(kind), hops=1)
    expected.src, expected.dst = results[0].packet.src, results[0].packet.dst
    assert_become(results, fragments(expected), Verdict.REDIRECT)


def test_a_pod_reaches_itself_in_fragments(datapath: Datapath, kind: Kind):
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    first = datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    source, turned = source_of(first.packet), (NODE_MAC, SENDER_MAC)
    request = kind.frame(pod(kind), frontend, "A", payload=LARGE)
    results = run_each(datapath, "lb_pod_ingress", fragments(request))
    expected = changed(request, source=source, target=itself, macs=turned)
    assert_become(results, fragments(expected), Verdict.REDIRECT)


# How fragments find their datagram


@pytest.mark.parametrize("program", ETHERNET)
def test_later_fragments_without_their_first_one_pass_untouched(
    datapath: Datapath, node: Node, kind: Kind, program: str
):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, kind)
    for frontend in (cluster_ip(datapath, kind, [index]), node_port(datapath, kind, [index])):
        established(datapath, kind, client(kind), frontend, program)
        request = kind.frame(client(kind), frontend, "A", payload=LARGE)
        for piece in fragments(request)[1:]:
            assert_untouched(datapath, program, piece)


def test_an_identification_belongs_to_the_datagram_that_had_it_last(
    datapath: Datapath, node: Node, udp: Kind
):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, udp)
    frontend = node_port(datapath, udp, [index])
    run_each(
        datapath,
        "lb_host_ingress",
        fragments(udp.frame(client(udp), frontend, payload=LARGE)),
        node.uplink.ifindex,
    )
    other = fragments(udp.frame(client(udp), End(frontend.address, 9999), payload=LARGE))
    assert_become(run_each(datapath, "lb_host_ingress", other, node.uplink.ifindex), other)


def test_datagrams_with_other_identifications_do_not_meet(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    run_each(datapath, "lb_pod_ingress", fragments(udp.frame(pod(udp), frontend, payload=LARGE)))
    other = udp.frame(pod(udp), frontend, payload=LARGE)
    for piece in fragments(other, number=IDENTIFICATION + 1)[1:]:
        assert_untouched(datapath, "lb_pod_ingress", piece)
    assert backend


def test_two_flows_are_distinguished_by_identification(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    pairs = [
        (udp.frame(pod(udp, port), frontend, payload=LARGE), number)
        for port, number in ((1001, 1), (1002, 0x10002 if udp.net.family == Family.IPV6 else 2))
    ]
    pieces = [fragments(packet, number=number) for packet, number in pairs]
    mixed = [piece for group in zip(*pieces, strict=True) for piece in group]
    expected = [fragments(changed(packet, target=backend), number=n) for packet, n in pairs]
    results = run_each(datapath, "lb_pod_ingress", mixed)
    assert_become(results, [piece for group in zip(*expected, strict=True) for piece in group])
    assert datapath.entry(pod(udp, 1002), frontend, udp.proto).packets == 3


def test_a_first_fragment_is_forgotten_after_half_a_minute(datapath: Datapath, udp: Kind):
    _, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    pieces = fragments(udp.frame(pod(udp), frontend, payload=LARGE))
    datapath.run("lb_pod_ingress", pieces[0])
    ((key, value),) = datapath.maps["lb_fragments"].items()
    first = LbFragment.from_buffer_copy(value)
    first.created -= 31 * 10**9
    datapath.maps["lb_fragments"].update(key, bytes(first))
    assert_untouched(datapath, "lb_pod_ingress", pieces[1])


def test_whole_packets_leave_nothing_for_fragments(datapath: Datapath, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    for _ in range(2):
        datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    assert not list(datapath.maps["lb_fragments"].items())


# Fragments that are not translated


def test_only_the_first_fragment_is_refused(datapath: Datapath, udp: Kind):
    frontend = cluster_ip(datapath, udp)
    pieces = fragments(udp.frame(pod(udp), frontend, payload=LARGE))
    result = datapath.run("lb_pod_ingress", pieces[0])
    assert result.verdict is Verdict.REDIRECT
    error = result.packet.payload
    assert (error.src, error.dst) == (frontend.address, udp.net.pod)
    assert (ICMPv6DestUnreach in error) == (udp.net.family == Family.IPV6)
    quoted = 28 if udp.net.family == Family.IPV4 else 56
    assert bytes(error).endswith(bytes(pieces[0].payload)[:quoted])
    for piece in pieces[1:]:
        assert_untouched(datapath, "lb_pod_ingress", piece)


def test_fragments_that_are_too_big_go_through_the_stack_and_of_ipv6_the_first_is_answered(
    datapath: Datapath, node: Node, udp: Kind
):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, udp, NARROW_ROUTE[udp.net.remote])
    frontend, ifindex = node_port(datapath, udp, [index]), node.uplink.ifindex
    small = udp.frame(client(udp), frontend, payload=LARGE[:100])
    assert datapath.run("lb_host_ingress", small, ifindex=ifindex).verdict is Verdict.REDIRECT
    pieces = fragments(udp.frame(client(udp), frontend, payload=LARGE * 2), size=1400)
    if udp.net.family == Family.IPV4:
        routed = [datapath.run("lb_host_ingress", each, ifindex=ifindex) for each in pieces]
        assert {each.verdict for each in routed} == {Verdict.PASS}
        assert {each.packet.payload.dst for each in routed} == {NARROW_ROUTE[udp.net.remote]}
        return
    answer = datapath.run("lb_host_ingress", pieces[0], ifindex=ifindex)
    assert answer.verdict is Verdict.REDIRECT
    assert ICMPv6PacketTooBig in answer.packet
    assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}
    assert_untouched(datapath, "lb_host_ingress", pieces[1], ifindex=ifindex)


def test_a_later_fragment_of_ipv6_that_is_too_big_is_dropped_without_an_answer(
    datapath: Datapath, node: Node, udp: Kind
):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, udp, NARROW_ROUTE[udp.net.remote])
    frontend, ifindex = node_port(datapath, udp, [index]), node.uplink.ifindex
    packet = udp.frame(client(udp), frontend, payload=LARGE * 2)
    datapath.run("lb_host_ingress", fragments(packet, size=800)[0], ifindex=ifindex)
    later = datapath.run("lb_host_ingress", fragments(packet, size=1400)[1], ifindex=ifindex)
    if udp.net.family == Family.IPV4:
        assert later.verdict is Verdict.PASS
        return
    assert later.verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}


def test_a_first_fragment_without_its_whole_transport_header_passes(datapath: Datapath, tcp: Kind):
    _, index = remote_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    datapath.run("lb_pod_ingress", tcp.frame(pod(tcp), frontend))
    packet = tcp.frame(pod(tcp), frontend, "A")
    for piece in fragments(packet, size=16):
        padded = type(piece)(bytes(piece) + bytes(40))
        assert_untouched(datapath, "lb_pod_ingress", padded)


def test_a_udp_checksum_of_zero_stays(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    packet = udp.frame(pod(udp), frontend, payload=LARGE)
    packet[UDP].chksum = 0
    expected = changed(packet, target=backend)
    assert expected[UDP].chksum == 0
    results = run_each(datapath, "lb_pod_ingress", fragments(packet))
    assert_become(results, fragments(expected))


def test_a_fin_in_a_fragment_does_not_end_a_flow(datapath: Datapath, tcp: Kind):
    backend, index = remote_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    datapath.run("lb_pod_ingress", tcp.frame(pod(tcp), frontend))
    datapath.run("lb_pod_egress", tcp.frame(backend, pod(tcp), "SA"))
    for piece in fragments(tcp.frame(pod(tcp), frontend, "FA", payload=LARGE)):
        datapath.run("lb_pod_ingress", piece)
    assert not any(state & CtState.LB_CT_OTHER_FIN for state in datapath.states())


def test_strangers_fragments_pass_untouched(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    datapath.address(kind.net.cluster_ip, AddrFlag.LB_ADDR_CLUSTER_IP)
    for target in (kind.net.client, kind.net.node):
        packet = kind.frame(pod(kind), End(target, 9999), "A", payload=LARGE)
        for program in ETHERNET:
            for piece in fragments(packet, SIZE):
                assert_untouched(datapath, program, piece)


def test_a_fragment_may_have_options(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    if udp.net.family == Family.IPV6:
        return
    request = udp.frame(pod(udp), frontend, payload=LARGE)
    expected = fragments(changed(request, target=backend))
    pieces = fragments(request)
    for piece in (*pieces, *expected):
        piece[IP].options = b"\1\1\1\1"
        piece[IP].ihl = piece[IP].len = piece[IP].chksum = None
    results = run_each(datapath, "lb_pod_ingress", [type(p)(bytes(p)) for p in pieces])
    assert_become(results, [type(p)(bytes(p)) for p in expected])

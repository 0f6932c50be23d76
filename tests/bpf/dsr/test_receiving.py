# SPDX-License-Identifier: Apache-2.0
"""The pod's node takes packets out of their tunnels; replies go directly to the client."""

from typing import Any

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import CtFlag, DescFlag, DropReason
from tests.bpf.dsr.tunnel import (
    DROPPED,
    KEY,
    OTHER_KEY,
    OVERHEAD,
    PEER,
    STRANGER,
    arrive,
    pod_elsewhere,
    pod_here,
    served,
    set_keys,
    wrapped,
)
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.errors import TOO_BIG, error
from tests.bpf.harness.fragments import fragments
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    IPV4,
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    built,
    changed,
)
from tests.bpf.harness.services import client, node_port, same_place


def leave(datapath: Datapath, node: Node, frame: Packet) -> Packet:
    result = datapath.run("lb_host_egress", frame, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.PASS
    return result.packet


def test_a_request_reaches_the_pod_from_its_client(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    request = kind.frame(client(kind), frontend)

    result = arrive(dsr, node, wrapped(kind, request, pod))

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=pod))
    reply = kind.frame(pod, client(kind), "SA")
    assert_same(leave(dsr, node, reply), changed(reply, source=frontend))
    assert {each.flags for each in dsr.short().values()} == {CtFlag.LB_CT_TUNNELED}
    assert not dsr.drops()


def test_a_client_that_is_a_pod_of_this_node_is_answered_at_its_device(
    dsr: Datapath, node: Node, kind: Kind
):
    pod, index = pod_here(dsr, kind)
    frontend, inside = served(dsr, kind, index), client(kind)._replace(address=kind.net.pod)
    request = kind.frame(inside, frontend)
    assert_same(arrive(dsr, node, wrapped(kind, request, pod)).packet, changed(request, target=pod))
    reply = kind.frame(pod, inside, "SA")
    result = dsr.run("lb_pod_egress", reply, ifindex=node.pod.ifindex)
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_node_port_is_answered_from_the_other_nodes_address(
    dsr: Datapath, node: Node, kind: Kind
):
    pod, index = pod_here(dsr, kind)
    here = node_port(dsr, kind, [index])
    frontend = here._replace(address=PEER[kind.net])
    request = kind.frame(client(kind), frontend)

    result = arrive(dsr, node, wrapped(kind, request, pod))

    assert_same(result.packet, changed(request, target=pod))
    reply = kind.frame(pod, client(kind), "SA")
    assert_same(leave(dsr, node, reply), changed(reply, source=frontend))


def test_requests_are_counted_by_their_sender_and_replies_here(
    dsr: Datapath, node: Node, kind: Kind
):
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    for flags in ("S", "A"):
        arrive(dsr, node, wrapped(kind, kind.frame(client(kind), frontend, flags), pod))
        leave(dsr, node, kind.frame(pod, client(kind), "SA"))
    for name, number in (("lb_count_front", 1), ("lb_count_back", index)):
        counts = dsr.all_counts(name, number)
        assert (counts.connections, counts.original.packets, counts.reply.packets) == (0, 0, 2)


def test_a_connection_goes_on_if_its_packets_come_without_a_tunnel(
    dsr: Datapath, node: Node, tcp: Kind
):
    pod, index = pod_here(dsr, tcp)
    frontend = served(dsr, tcp, index)
    arrive(dsr, node, wrapped(tcp, tcp.frame(client(tcp), frontend), pod))
    leave(dsr, node, tcp.frame(pod, client(tcp), "SA"))
    arrive(dsr, node, wrapped(tcp, tcp.frame(client(tcp), frontend, "A"), pod))
    assert len(dsr.established()) == 2
    direct = tcp.frame(client(tcp), frontend, "PA")
    assert_same(arrive(dsr, node, direct).packet, changed(direct, target=pod))


def test_fragments_and_errors_reach_the_pod(dsr: Datapath, node: Node, udp: Kind):
    pod, index = pod_here(dsr, udp)
    frontend = served(dsr, udp, index)
    datagram = udp.frame(client(udp), frontend, payload=bytes(range(256)) * 8)
    for piece in fragments(datagram):
        result = arrive(dsr, node, wrapped(udp, piece, pod))
        assert result.verdict is Verdict.PASS
        assert result.packet.payload.dst == pod.address
    reply = changed(udp.frame(pod, client(udp)), source=frontend)
    told = error(udp, STRANGER[str(udp.net)], reply, what=TOO_BIG, mtu=1300)
    result = arrive(dsr, node, wrapped(udp, told, pod))
    assert result.verdict is Verdict.PASS
    expected = error(
        udp, STRANGER[str(udp.net)], udp.frame(pod, client(udp)), what=TOO_BIG, mtu=1300
    )
    assert_same(result.packet, expected)


@pytest.mark.parametrize("size", [536, 1460, 1392, 1300])
def test_the_pod_offers_what_fits_into_the_tunnel(dsr: Datapath, node: Node, tcp: Kind, size: int):
    pod, index = pod_here(dsr, tcp)
    frontend = served(dsr, tcp, index)
    arrive(dsr, node, wrapped(tcp, tcp.frame(client(tcp), frontend), pod))
    most = 1500 - OVERHEAD[tcp.net] - (40 if tcp.net is IPV4 else 60)
    for options in (
        [("MSS", size), ("SAckOK", b""), ("NOP", None), ("WScale", 7)],
        [("NOP", None), ("SAckOK", b""), ("MSS", size), ("EOL", None)],
    ):
        reply = tcp.frame(pod, client(tcp), "SA", payload=b"")
        reply[TCP].options = options
        reply[TCP].dataofs = None
        del reply[TCP].chksum
        reply.payload.setfieldval("len" if tcp.net is IPV4 else "plen", None)
        if tcp.net is IPV4:
            del reply.payload.chksum
        reply = built(reply)
        expected = changed(reply, source=frontend)
        found = leave(dsr, node, reply)
        assert dict(found[TCP].options)["MSS"] == min(size, most)
        expected[TCP].options = found[TCP].options
        del expected[TCP].chksum
        assert_same(found, built(expected))


def test_a_connection_without_a_tunnel_offers_what_its_pod_does(
    dsr: Datapath, node: Node, tcp: Kind
):
    pod, index = pod_here(dsr, tcp)
    frontend = served(dsr, tcp, index)
    arrive(dsr, node, tcp.frame(client(tcp), frontend))
    reply = tcp.frame(pod, client(tcp), "SA", payload=b"")
    reply[TCP].options, reply[TCP].dataofs = [("MSS", 1460)], None
    del reply[TCP].chksum
    reply.payload.setfieldval("len" if tcp.net is IPV4 else "plen", None)
    if tcp.net is IPV4:
        del reply.payload.chksum
    assert dict(leave(dsr, node, built(reply))[TCP].options)["MSS"] == 1460


def test_an_index_that_another_pod_has_got_is_not_used(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    dsr.write_backend(index, pod._replace(address=kind.net.pod), kind.proto, serial=2)
    result = arrive(dsr, node, wrapped(kind, request, pod))
    assert_same(result.packet, changed(request, target=pod))
    assert index not in {each.backend for each in dsr.short().values()}


def test_a_new_flow_goes_where_its_sender_says(dsr: Datapath, node: Node, kind: Kind):
    first, index = pod_here(dsr, kind)
    second, _ = pod_here(dsr, kind, kind.net.pod)
    frontend = served(dsr, kind, index)
    request = kind.frame(client(kind), frontend)
    for pod in (first, second):
        result = arrive(dsr, node, wrapped(kind, request, pod))
        assert_same(result.packet, changed(request, target=pod))


def test_an_open_connection_stays_where_it_is(dsr: Datapath, node: Node, tcp: Kind):
    first, index = pod_here(dsr, tcp)
    second, _ = pod_here(dsr, tcp, tcp.net.pod)
    frontend = served(dsr, tcp, index)
    arrive(dsr, node, wrapped(tcp, tcp.frame(client(tcp), frontend), first))
    leave(dsr, node, tcp.frame(first, client(tcp), "SA"))
    packet = tcp.frame(client(tcp), frontend, "A")
    result = arrive(dsr, node, wrapped(tcp, packet, second))
    assert_same(result.packet, changed(packet, target=first))


# Rejected packets


def test_nobody_but_a_node_sends_in_a_tunnel(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    forged = wrapped(kind, request, pod, source=STRANGER[str(kind.net)])
    assert arrive(dsr, node, forged).verdict is Verdict.DROP
    assert dsr.drops() == DROPPED
    assert not dsr.short()


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_while_keys_change_both_are_accepted(dsr: Datapath, node: Node, kind: Kind, key: bytes):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    result = arrive(dsr, node, wrapped(kind, request, pod, key=key))
    assert_same(result.packet, changed(request, target=pod))


@pytest.mark.parametrize("key", [bytes(8), bytes(7) + b"\1", OTHER_KEY[:4] + KEY[4:]])
def test_who_does_not_know_a_key_sends_in_no_tunnel(
    dsr: Datapath, node: Node, kind: Kind, key: bytes
):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    for frame in (wrapped(kind, request, pod, key=key), question(kind, PEER[kind.net], key=key)):
        assert arrive(dsr, node, frame).verdict is Verdict.DROP
    assert dsr.drops() == {DropReason.LB_DROP_TUNNEL_KEY: 2}
    assert not dsr.short()


def test_the_first_key_is_the_one_that_is_sent(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    set_keys(dsr, OTHER_KEY, KEY)
    assert OTHER_KEY in bytes(arrive(dsr, node, request).packet)


def test_the_midst_of_an_unknown_connection_ends_here(dsr: Datapath, node: Node, tcp: Kind):
    pod, index = pod_here(dsr, tcp)
    request = tcp.frame(client(tcp), served(dsr, tcp, index), "PA")
    assert arrive(dsr, node, wrapped(tcp, request, pod)).verdict is Verdict.DROP
    assert dsr.drops() == DROPPED


def test_an_error_about_nothing_that_is_known_ends_here(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    told = error(kind, STRANGER[str(kind.net)], kind.frame(frontend, client(kind)))
    assert arrive(dsr, node, wrapped(kind, told, pod)).verdict is Verdict.DROP


def test_a_packet_of_the_other_family_ends_here(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    frame = bytearray(bytes(wrapped(kind, request, pod)))
    protocol = 14 + OVERHEAD[kind.net] - 38
    frame[protocol : protocol + 2] = (0x86DD if kind.net is IPV4 else 0x0800).to_bytes(2, "big")
    assert arrive(dsr, node, Packet(bytes(frame))).verdict is Verdict.DROP


@pytest.mark.parametrize(
    "change",
    [
        {"port": 6081},
        {"option": (0x0102, 0x81)},
        {"option": (0xFF6C, 0x01)},
        {"target": "other node"},
    ],
    ids=["port", "class", "type", "target"],
)
def test_what_is_not_ours_passes_untouched(
    dsr: Datapath, node: Node, kind: Kind, change: dict[str, Any]
):
    if "target" in change:
        change = {"target": same_place(kind.net.node)}
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    for source in (PEER[kind.net], STRANGER[str(kind.net)]):
        frame = wrapped(kind, request, pod, source=source, **change)
        assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


def test_it_is_not_sent_on_in_a_tunnel_again(dsr: Datapath, node: Node, kind: Kind):
    _, elsewhere = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, elsewhere)
    request = kind.frame(client(kind), frontend)
    assert arrive(dsr, node, request).verdict is Verdict.REDIRECT
    pod, _ = pod_here(dsr, kind)
    result = arrive(dsr, node, wrapped(kind, request, pod))
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=pod))
    again = kind.frame(client(kind), frontend, "A")
    assert_same(arrive(dsr, node, again).packet, changed(again, target=pod))


def test_without_dsr_a_tunnel_is_like_any_packet(dsr: Datapath, node: Node, kind: Kind):
    dsr.settings()
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    frame = wrapped(kind, request, pod)
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


# Whether a node takes part


def question(kind: Kind, source: str, words: tuple[int, int] = (1, 0), key: bytes = KEY) -> Packet:
    pod, inner = End(kind.net.pod, 0), kind.frame(End(kind.net.pod, 0), End(kind.net.pod, 0))
    return wrapped(kind, inner, pod, source=source, control=True, words=words, key=key)


def test_a_node_that_asks_is_answered(dsr: Datapath, node: Node, kind: Kind):
    asked = question(kind, PEER[kind.net])
    result = arrive(dsr, node, asked)
    assert result.verdict is Verdict.REDIRECT
    ends = End(kind.net.node, 6089), End(PEER[kind.net], 0xC000)
    expected = changed(question(kind, PEER[kind.net], (0, 1)), source=ends[0], target=ends[1])
    expected.src, expected.dst = NODE_MAC, SENDER_MAC
    assert_same(result.packet, expected)


def test_answers_and_strangers_are_not_answered(dsr: Datapath, node: Node, kind: Kind):
    for source, words in ((PEER[kind.net], (0, 1)), (STRANGER[str(kind.net)], (1, 0))):
        assert arrive(dsr, node, question(kind, source, words)).verdict is Verdict.DROP


def test_the_other_frontends_of_a_service_need_no_dsr(dsr: Datapath, node: Node, kind: Kind):
    """The sender's settings decide, because nodes do not see a change at the same time."""
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    dsr.flag_frontends(DescFlag(0))
    request = kind.frame(client(kind), frontend)
    assert arrive(dsr, node, wrapped(kind, request, pod)).verdict is Verdict.PASS


# From a pod


def test_a_pod_sends_no_node_a_tunnel(dsr: Datapath, node: Node, kind: Kind):
    """Neither to this node nor to another one, whatever source address it claims."""
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    forged = [
        wrapped(kind, request, pod, target=target, source=source)
        for target in (kind.net.node, PEER[kind.net])
        for source in (PEER[kind.net], kind.net.pod)
    ]
    forged.append(question(kind, kind.net.pod))
    for number, frame in enumerate(forged, 1):
        result = dsr.run("lb_pod_ingress", frame, ifindex=node.pod.ifindex)
        assert result.verdict is Verdict.DROP
        assert dsr.drops() == {DropReason.LB_DROP_TUNNEL: number}


@pytest.mark.parametrize(
    "change", [{"port": 6081}, {"option": (0x0102, 0x81)}, {"target": "pod"}, {"dsr": 0}]
)
def test_what_else_a_pod_sends_passes(
    dsr: Datapath, node: Node, kind: Kind, change: dict[str, Any]
):
    """Geneve of other virtual networks, and the tunnels of a cluster that runs in pods."""
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    if "dsr" in change:
        dsr.settings()
        change = {}
    if "target" in change:
        change = {"target": kind.net.remote}
    frame = wrapped(kind, request, pod, source=kind.net.pod, **change)
    assert_untouched(dsr, "lb_pod_ingress", frame, ifindex=node.pod.ifindex)

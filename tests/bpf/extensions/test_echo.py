# SPDX-License-Identifier: Apache-2.0
"""Pings to addresses of Services that have an endpoint: answered here, at a limited rate."""

import time
from collections import Counter
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest
from scapy.packet import Packet, Raw

from ebpflb.dataplane.layout.enums import AddrFlag, DropReason
from tests.bpf.extensions.conftest import route
from tests.bpf.harness.datapath import Datapath, Result, Verdict, XdpAction, assert_untouched
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    IPV4,
    IPV6,
    NODE_MAC,
    SENDER_MAC,
    UDP_KINDS,
    Kind,
    assert_same,
    built,
    filler,
    ttl_of,
)
from tests.bpf.harness.programs import prog_test_run

VIP = AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_ECHO
CLUSTER_IP = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_ECHO
REJECT = AddrFlag.LB_ADDR_UNSERVED_REJECT
PER_SECOND, FLOOD = 1000, 5000
NUMBERS: dict[str, Any] = {"id": 4711, "seq": 7}


@pytest.fixture(params=UDP_KINDS, ids=lambda kind: str(kind.net))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Of each family."""
    found: Kind = request.param
    return found


def header(kind: Kind, *, is_reply: bool = False) -> Packet:
    if kind.ip is IP:
        return ICMP(type=0 if is_reply else 8, **NUMBERS)
    return ICMPv6EchoReply(**NUMBERS) if is_reply else ICMPv6EchoRequest(**NUMBERS)


def ping(kind: Kind, target: str, source: str = "", *, ttl: int = 64, length: int = 56) -> Packet:
    packet = kind.packet(source or kind.net.client, target, ttl)
    return built(packet / header(kind) / Raw(filler(length)))


def assert_echoed(result: Result, kind: Kind, request: Packet) -> None:
    sent = request.payload
    answer = kind.packet(sent.dst, sent.src)
    answer.src, answer.dst = NODE_MAC, SENDER_MAC
    assert result.verdict is Verdict.REDIRECT
    payload = bytes(sent.payload)[8:]
    assert_same(result.packet, built(answer / header(kind, is_reply=True) / Raw(payload)))
    assert ttl_of(result.packet) == 64


def arrive(datapath: Datapath, node: Node, frame: Packet) -> Result:
    return datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize("length", [0, 1, 56, 1400])
def test_a_ping_from_outside_is_answered(datapath: Datapath, node: Node, kind: Kind, length: int):
    datapath.address(kind.net.external_ip, VIP)
    request = ping(kind, kind.net.external_ip, ttl=1, length=length)
    assert_echoed(arrive(datapath, node, request), kind, request)
    assert not datapath.drops()


@pytest.mark.usefixtures("addresses")
def test_reject_says_that_the_address_is_here(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP | REJECT)
    request = ping(kind, kind.net.external_ip)
    assert_echoed(arrive(datapath, node, request), kind, request)


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize(
    "flags",
    [
        AddrFlag.LB_ADDR_EXTERNAL,
        VIP | AddrFlag.LB_ADDR_NODE | REJECT,
        VIP | AddrFlag.LB_ADDR_UNSERVED_PASS,
    ],
    ids=["no-endpoint", "node", "pass"],
)
def test_these_addresses_are_not_answered_for(
    datapath: Datapath, node: Node, kind: Kind, flags: AddrFlag
):
    datapath.address(kind.net.external_ip, flags)
    frame = ping(kind, kind.net.external_ip)
    result = arrive(datapath, node, frame)
    assert (result.verdict, bytes(result.packet)) == (Verdict.PASS, bytes(frame))


@pytest.mark.usefixtures("addresses")
def test_a_machine_with_the_address_answers_itself(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP)
    frame = ping(kind, kind.net.external_ip)
    with route(kind.net, "dev", "overlay"):
        result = arrive(datapath, node, frame)
    assert (result.verdict, bytes(result.packet)) == (Verdict.PASS, bytes(frame))


@pytest.mark.parametrize("program", ["lb_pod_ingress", "lb_host_ingress", "lb_host_egress"])
def test_a_cluster_ip_answers_everybody(datapath: Datapath, kind: Kind, program: str):
    datapath.address(kind.net.cluster_ip, CLUSTER_IP)
    request = ping(kind, kind.net.cluster_ip, kind.net.pod)
    assert_echoed(datapath.run(program, request), kind, request)


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize("program", ["lb_pod_ingress", "lb_host_egress"])
def test_what_this_node_sends_goes_to_the_network(datapath: Datapath, kind: Kind, program: str):
    """Another machine may have the address, such as a node with k3s."""
    datapath.address(kind.net.external_ip, VIP | REJECT)
    assert_untouched(datapath, program, ping(kind, kind.net.external_ip, kind.net.pod))


def _strange(kind: Kind) -> dict[str, Packet]:
    address = kind.net.cluster_ip
    packet = kind.packet(kind.net.client, address)
    other = header(kind)
    other.code = 1
    martian = {IPV4: "127.0.0.1", IPV6: "::1"}[kind.net]
    answer = built(packet / header(kind, is_reply=True) / Raw(b"data"))
    return {
        "code": built(packet / other / Raw(b"data")),
        "answer": answer,
        "martian": ping(kind, address, martian),
    }


@pytest.mark.parametrize("what", ["code", "answer", "martian"])
def test_what_is_no_ping_passes(datapath: Datapath, kind: Kind, what: str):
    datapath.address(kind.net.cluster_ip, CLUSTER_IP)
    assert_untouched(datapath, "lb_host_ingress", _strange(kind)[what])


def test_pings_with_options_or_in_fragments_pass(datapath: Datapath):
    kind = UDP_KINDS[0]
    datapath.address(IPV4.cluster_ip, CLUSTER_IP)
    for fields in ({"options": [IPOption_NOP()] * 4}, {"flags": "MF"}, {"frag": 8}):
        packet = kind.packet(IPV4.client, IPV4.cluster_ip)
        for name, value in fields.items():
            setattr(packet[IP], name, value)
        frame = built(packet / ICMP(**NUMBERS) / Raw(bytes(64)))
        assert_untouched(datapath, "lb_host_ingress", frame)


@pytest.mark.usefixtures("whole_seconds")
def test_only_so_many_are_answered_in_a_second(datapath: Datapath, programs: Loaded, kind: Kind):
    datapath.address(kind.net.cluster_ip, CLUSTER_IP)
    frame = bytes(ping(kind, kind.net.cluster_ip, kind.net.pod))
    begin = time.monotonic()
    results = Counter(
        prog_test_run(programs.programs["lb_pod_ingress"], frame).retval for _ in range(FLOOD)
    )
    seconds = int(time.monotonic()) - int(begin) + 1
    answered = results[Verdict.REDIRECT]
    assert PER_SECOND <= answered <= seconds * PER_SECOND
    assert results[Verdict.DROP] == FLOOD - answered
    assert datapath.drops() == Counter({DropReason.LB_DROP_ECHO: FLOOD - answered})
    assert seconds > FLOOD / PER_SECOND or results[Verdict.DROP]


@pytest.mark.usefixtures("route_back")
def test_xdp_leaves_pings_to_tc(datapath: Datapath, node: Node, kind: Kind):
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
    datapath.address(kind.net.external_ip, VIP)
    frame = bytes(ping(kind, kind.net.external_ip))
    assert datapath.run_xdp(frame, ifindex=node.uplink.ifindex) == (XdpAction.PASS, frame)

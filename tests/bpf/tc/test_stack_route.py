# SPDX-License-Identifier: Apache-2.0
"""Masqueraded packets that the stack routes: their state between the two hooks, and afterwards."""

import pytest
from scapy.layers.inet import IP
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import DropReason, SettingFlag
from tests.bpf.harness.datapath import Datapath, Result, Verdict
from tests.bpf.harness.errors import error
from tests.bpf.harness.node import OVERLAY_MTU, Node
from tests.bpf.harness.packets import End, Kind, assert_same, ttl_of, with_df
from tests.bpf.harness.services import client, node_addresses, node_port, remote_backend


@pytest.fixture
def routing(datapath: Datapath, node: Node) -> Datapath:
    """The stack routes everything that is masqueraded."""
    node_addresses(datapath, node)
    datapath.settings(flags=SettingFlag.LB_SETTING_VIA_STACK)
    return datapath


def passed(result: Result) -> Packet:
    assert result.verdict is Verdict.PASS
    return result.packet


def ends(packet: Packet) -> tuple[End, End]:
    network, transport = packet.payload, packet.payload.payload
    return End(network.src, transport.sport), End(network.dst, transport.dport)


def test_netfilter_sees_the_client_and_the_backend(routing: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(routing, kind)
    frontend, asker = node_port(routing, kind, [index]), client(kind)
    uplink, overlay = node.uplink.ifindex, node.overlay.ifindex

    request = kind.frame(asker, frontend)
    between = passed(routing.run("lb_host_ingress", request, ifindex=uplink))
    source, target = ends(between)
    assert (source.address, target) == (asker.address, backend)
    assert ttl_of(between) == ttl_of(request)
    left = passed(routing.run("lb_host_egress", between, ifindex=overlay))
    masqueraded = End(kind.net.overlay, source.port)
    assert_same(left, kind.frame(masqueraded, backend))

    reply = kind.frame(backend, masqueraded, "SA")
    between = passed(routing.run("lb_host_ingress", reply, ifindex=overlay))
    assert_same(between, kind.frame(backend, source, "SA"))
    answer = passed(routing.run("lb_host_egress", between, ifindex=uplink))
    assert_same(answer, kind.frame(frontend, asker, "SA"))


def test_an_error_of_the_stack_quotes_what_the_client_sent(
    routing: Datapath, node: Node, kind: Kind
):
    _, index = remote_backend(routing, kind)
    frontend, asker = node_port(routing, kind, [index]), client(kind)
    request = kind.frame(asker, frontend)
    between = passed(routing.run("lb_host_ingress", request, ifindex=node.uplink.ifindex))
    refusal = error(kind, kind.net.node, between)
    told = passed(routing.run("lb_host_egress", refusal, ifindex=node.uplink.ifindex))
    assert_same(told, error(kind, frontend.address, request))


def test_nothing_else_is_taken_for_such_a_packet(routing: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(routing, kind)
    asker = client(kind)
    request = kind.frame(asker, node_port(routing, kind, [index]))
    passed(routing.run("lb_host_ingress", request, ifindex=node.uplink.ifindex))
    direct = kind.frame(asker, backend)
    assert_same(passed(routing.run("lb_host_egress", direct)), direct)


def test_the_stack_fragments_what_is_too_big(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    large = kind.frame(client(kind), node_port(datapath, kind, [index]), payload=bytes(OVERLAY_MTU))
    result = datapath.run("lb_host_ingress", large, ifindex=node.uplink.ifindex)
    if kind.ip is not IP:
        assert result.verdict is Verdict.REDIRECT
        assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}
        return
    assert ends(passed(result))[1] == backend
    datapath.run("lb_host_ingress", with_df(large), ifindex=node.uplink.ifindex)
    assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}

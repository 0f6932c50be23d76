# SPDX-License-Identifier: Apache-2.0
"""Packets to a port that no Service has at a load-balancer IP or external IP."""

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    DropReason,
    FrontendTypeCode,
    SettingFlag,
)
from tests.bpf.extensions.conftest import route
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, assert_untouched
from tests.bpf.harness.errors import UNREACHABLE, assert_answered
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, TCP_KINDS, End, Kind
from tests.bpf.harness.services import client, local_backend, pod

VIP = AddrFlag.LB_ADDR_EXTERNAL
DROP, REJECT, PASS = (
    AddrFlag.LB_ADDR_UNSERVED_DROP,
    AddrFlag.LB_ADDR_UNSERVED_REJECT,
    AddrFlag.LB_ADDR_UNSERVED_PASS,
)
OTHER_ROUTER = {IPV4: "172.16.0.2", IPV6: "fd00:16::2"}
RESETS = SettingFlag.LB_SETTING_RESETS


def packet(kind: Kind, flags: str = "S", sender: End | None = None) -> Packet:
    return kind.frame(sender or client(kind), End(kind.net.external_ip, 22), flags)


def assert_refused(datapath: Datapath, node: Node, kind: Kind) -> None:
    request = packet(kind)
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert_answered(result, kind, request, UNREACHABLE)
    assert datapath.drops() == {DropReason.LB_DROP_UNKNOWN_PORT: 1}


def assert_passes(datapath: Datapath, node: Node, kind: Kind, flags: str = "S") -> None:
    frame = packet(kind, flags)
    result = datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert (result.verdict, bytes(result.packet)) == (Verdict.PASS, bytes(frame))
    assert not datapath.drops()


@pytest.mark.usefixtures("route_back")
def test_what_would_go_back_is_refused(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP)
    assert_refused(datapath, node, kind)


@pytest.mark.usefixtures("addresses")
def test_what_would_go_to_a_router_by_another_uplink_is_refused(
    datapath: Datapath, node: Node, kind: Kind
):
    datapath.address(kind.net.external_ip, VIP)
    with route(kind.net, "via", OTHER_ROUTER[kind.net]):
        assert_refused(datapath, node, kind)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize("device", ["overlay", "pod", "lo"])
def test_a_machine_with_the_address_gets_its_packets(
    datapath: Datapath, node: Node, kind: Kind, device: str
):
    datapath.address(kind.net.external_ip, VIP)
    with route(kind.net, "dev", device):
        assert_passes(datapath, node, kind)


@pytest.mark.usefixtures("addresses")
def test_without_a_route_they_are_left_to_the_stack(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP)
    assert_passes(datapath, node, kind)


@pytest.mark.usefixtures("addresses")
def test_reject_asks_for_no_route(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP | REJECT | PASS)
    assert_refused(datapath, node, kind)


@pytest.mark.usefixtures("addresses")
def test_drop_comes_before_what_others_ask_for(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP | DROP | REJECT | PASS)
    result = datapath.run("lb_host_ingress", packet(kind), ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_UNSERVED_PORT: 1}


@pytest.mark.usefixtures("route_back")
def test_pass_lets_them_go_back(datapath: Datapath, node: Node, kind: Kind):
    datapath.address(kind.net.external_ip, VIP | PASS)
    assert_passes(datapath, node, kind)


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize("wish", [0, DROP, REJECT])
def test_an_address_of_the_node_is_left_alone(
    datapath: Datapath, node: Node, kind: Kind, wish: AddrFlag
):
    datapath.address(kind.net.external_ip, VIP | AddrFlag.LB_ADDR_NODE | wish)
    assert_passes(datapath, node, kind)


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize("wish", [0, DROP, REJECT])
@pytest.mark.parametrize("program", ["lb_pod_ingress", "lb_host_egress"])
def test_what_this_node_sends_passes(datapath: Datapath, kind: Kind, program: str, wish: AddrFlag):
    """It may be for another machine that has the address."""
    datapath.address(kind.net.external_ip, VIP | wish)
    assert_untouched(datapath, program, packet(kind, sender=pod(kind)))


@pytest.mark.parametrize("kind", TCP_KINDS, ids=str)
@pytest.mark.usefixtures("route_back")
def test_the_middle_of_a_connection_passes(datapath: Datapath, node: Node, kind: Kind):
    """As an answer to this node, if netfilter masquerades with that address."""
    datapath.settings(flags=RESETS)
    datapath.address(kind.net.external_ip, VIP)
    for flags in ("A", "SA", "FA", "R"):
        assert_passes(datapath, node, kind, flags)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize(
    ("wish", "verdict", "reason"),
    [
        (REJECT, Verdict.REDIRECT, DropReason.LB_DROP_UNKNOWN_CONNECTION),
        (DROP, Verdict.DROP, DropReason.LB_DROP_UNSERVED_PORT),
    ],
)
def test_the_middle_of_a_connection_ends_as_asked_for(
    datapath: Datapath, node: Node, tcp: Kind, wish: AddrFlag, verdict: Verdict, reason: DropReason
):
    datapath.settings(flags=RESETS)
    datapath.address(tcp.net.external_ip, VIP | wish)
    result = datapath.run("lb_host_ingress", packet(tcp, "A"), ifindex=node.uplink.ifindex)
    assert result.verdict is verdict
    assert datapath.drops() == {reason: 1}


@pytest.mark.usefixtures("route_back")
@pytest.mark.parametrize("wish", [0, DROP, REJECT, PASS])
def test_xdp_leaves_them_to_tc(datapath: Datapath, node: Node, kind: Kind, wish: AddrFlag):
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
    datapath.address(kind.net.external_ip, VIP | wish)
    frame = bytes(packet(kind))
    assert datapath.run_xdp(frame, ifindex=node.uplink.ifindex) == (XdpAction.PASS, frame)
    assert not datapath.drops()


@pytest.mark.usefixtures("route_back")
def test_a_served_port_is_not_concerned(datapath: Datapath, node: Node, kind: Kind):
    end, backend = local_backend(datapath, kind)
    datapath.address(kind.net.external_ip, VIP | DROP)
    place = End(kind.net.external_ip, 22)
    datapath.frontend(place, kind.proto, others=[backend], kind=FrontendTypeCode.LB_LOAD_BALANCER)
    result = datapath.run("lb_host_ingress", packet(kind), ifindex=node.uplink.ifindex)
    assert (result.verdict, result.packet.payload.dst) == (Verdict.PASS, end.address)

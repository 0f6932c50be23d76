# SPDX-License-Identifier: Apache-2.0
"""Packets to an address in the Service ranges that no Service has."""

import socket

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import ICMPv6EchoRequest

from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.layout.enums import AddrFlag, DropReason
from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, End, Kind, built, target_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    client,
    cluster_ip,
    node_addresses,
    pod,
    remote_backend,
)

RANGES = ("10.96.0.0/24", "fd00:96::/120")
OTHERS = [f"10.{100 + number}.0.0/16" for number in range(0, 14, 2)]
OTHERS += [f"fd00:{100 + number}::/112" for number in range(0, 14, 2)]
DROPPED = {DropReason.LB_DROP_UNUSED_ADDRESS: 1}


@pytest.fixture(autouse=True)
def ranges(datapath: Datapath, node: Node) -> None:
    node_addresses(datapath, node)
    assert write_service_nets(datapath.maps["lb_service_nets"], [*RANGES, *OTHERS]) == []


def unused(kind: Kind) -> End:
    """An address of the ranges without a Service."""
    return End("10.96.0.77" if kind.net is IPV4 else "fd00:96::77", 80)


def own(kind: Kind) -> End:
    return End(kind.net.node, CLIENT_PORT)


def test_it_is_dropped_on_its_way_out(datapath: Datapath, node: Node, kind: Kind):
    request = kind.frame(own(kind), unused(kind))
    result = datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.DROP
    assert datapath.drops() == DROPPED


@pytest.mark.parametrize("place", range(8))
def test_every_range_counts(datapath: Datapath, node: Node, kind: Kind, place: int):
    nets = [each for each in OTHERS if (":" in each) == (kind.net is not IPV4)]
    nets.insert(place, RANGES[kind.net is not IPV4])
    write_service_nets(datapath.maps["lb_service_nets"], nets)
    request = kind.frame(own(kind), unused(kind))
    result = datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.DROP


@pytest.mark.parametrize("outside", ["10.96.1.1", "10.95.255.255", "fd00:96::100", "fd00:95::77"])
def test_what_is_outside_of_the_ranges_passes(
    datapath: Datapath, node: Node, kind: Kind, outside: str
):
    if (":" in outside) == (kind.net.family is Family.IPV6):
        packet = kind.frame(own(kind), End(outside, 80))
        assert_untouched(datapath, "lb_host_egress", packet, ifindex=node.uplink.ifindex)


def test_without_ranges_nothing_is_dropped(datapath: Datapath, node: Node, kind: Kind):
    write_service_nets(datapath.maps["lb_service_nets"], [])
    packet = kind.frame(own(kind), unused(kind))
    assert_untouched(datapath, "lb_host_egress", packet, ifindex=node.uplink.ifindex)


def test_whatever_the_protocol_is(datapath: Datapath, node: Node, tcp: Kind):
    ping = ICMP() if tcp.net is IPV4 else ICMPv6EchoRequest()
    packet = built(tcp.packet(tcp.net.node, unused(tcp).address) / ping)
    result = datapath.run("lb_host_egress", packet, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.DROP


def test_an_address_that_a_service_has_is_served(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(own(kind), cluster_ip(datapath, kind, [index]))
    result = datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.REDIRECT
    assert target_of(result.packet) == backend


@pytest.mark.parametrize("flag", [AddrFlag.LB_ADDR_NODE, AddrFlag.LB_ADDR_EXTERNAL])
def test_an_address_of_the_node_or_of_a_load_balancer_passes(
    datapath: Datapath, node: Node, kind: Kind, flag: AddrFlag
):
    datapath.address(unused(kind).address, flag)
    packet = kind.frame(own(kind), unused(kind))
    assert_untouched(datapath, "lb_host_egress", packet, ifindex=node.uplink.ifindex)


def test_the_hosts_flows_outlive_their_service(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    request = kind.frame(own(kind), frontend)
    datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
    datapath.address(frontend.address, 0)

    packet = kind.frame(own(kind), frontend, "A")
    result = datapath.run("lb_host_egress", packet, ifindex=node.uplink.ifindex)

    assert target_of(result.packet) == backend
    assert not datapath.drops()


def test_nothing_is_dropped_where_others_may_still_translate_it(
    datapath: Datapath, node: Node, kind: Kind
):
    packet = kind.frame(client(kind), unused(kind))
    assert_untouched(datapath, "lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    packet = kind.frame(pod(kind), unused(kind))
    assert_untouched(datapath, "lb_pod_ingress", packet, ifindex=node.pod.ifindex)
    assert_untouched(datapath, "lb_pod_egress", packet, ifindex=node.pod.ifindex)


# At the devices, where the kernel routes


@pytest.mark.usefixtures("wired")
def test_what_a_pod_sends_there_does_not_leave_the_node(datapath: Datapath, node: Node, kind: Kind):
    node.pod.send(kind.frame(pod(kind), unused(kind)))
    node.bare.send(kind.frame(End(kind.net.local, CLIENT_PORT), unused(kind)))
    assert node.uplink.is_silent()
    assert datapath.drops() == {DropReason.LB_DROP_UNUSED_ADDRESS: 2}


@pytest.mark.usefixtures("wired")
def test_what_others_send_there_by_this_node_does_not_go_on(
    datapath: Datapath, node: Node, kind: Kind
):
    node.overlay.send(kind.frame(End(kind.net.remote, CLIENT_PORT), unused(kind)))
    assert node.uplink.is_silent()
    assert datapath.drops() == DROPPED


@pytest.mark.usefixtures("wired")
def test_an_address_whose_service_went_is_unused_at_once(
    datapath: Datapath, node: Node, kind: Kind
):
    datapath.address(unused(kind).address, 0)
    node.pod.send(kind.frame(pod(kind), unused(kind)))
    assert node.uplink.is_silent()
    assert datapath.drops() == DROPPED


@pytest.mark.usefixtures("wired")
def test_a_process_of_the_node_that_sends_there_hears_nothing(
    datapath: Datapath, node: Node, udp: Kind
):
    family = socket.AF_INET if udp.net is IPV4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"anybody?", unused(udp))
    assert node.uplink.is_silent()
    assert datapath.drops() == DROPPED

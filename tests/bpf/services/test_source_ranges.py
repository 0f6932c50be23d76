# SPDX-License-Identifier: Apache-2.0
"""Clients outside a load-balancer IP's source ranges are dropped silently; their open flows
survive.
"""

from ipaddress import ip_network

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, assert_same, changed
from tests.bpf.harness.services import (
    CLIENT_PORT,
    client,
    cluster_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
)
from tests.bpf.services.load_balancer import allow, limit, load_balancer

pytestmark = pytest.mark.usefixtures("addresses")

NOT_FOR_THEM = DropReason.LB_DROP_SOURCE_RANGE


def lone(address: str) -> str:
    """The range of a single address."""
    return str(ip_network(address))


def other_pod(kind: Kind) -> str:
    return lone(kind.net.local)


def assert_dropped(datapath: Datapath, node: Node, program: str, packet) -> None:
    tap = node.pod if "pod" in program else node.uplink
    before = datapath.drops().get(NOT_FOR_THEM, 0)
    flows = datapath.short() | datapath.established()
    assert datapath.run(program, packet, ifindex=tap.ifindex).verdict is Verdict.DROP
    assert datapath.drops() == {NOT_FOR_THEM: before + 1}
    assert datapath.short() | datapath.established() == flows


SOURCES = {
    "lb_host_ingress": client,
    "lb_pod_ingress": pod,
    "lb_host_egress": lambda kind: End(kind.net.node, CLIENT_PORT),
}


@pytest.mark.parametrize("program", SOURCES)
def test_a_client_in_a_range_is_served(datapath: Datapath, node: Node, kind: Kind, program: str):
    source = SOURCES[program](kind)
    backend, index = remote_backend(datapath, kind)
    allow(datapath, lone(source.address), other_pod(kind))
    request = kind.frame(source, load_balancer(datapath, kind, [index]))
    tap = node.pod if "pod" in program else node.uplink

    result = datapath.run(program, request, ifindex=tap.ifindex)

    assert result.verdict is not Verdict.DROP
    assert (result.packet.payload.dst, result.packet.payload.payload.dport) == backend
    assert datapath.counts("lb_count_front", 1) == (1, 0, 0)


@pytest.mark.parametrize("program", SOURCES)
def test_a_client_in_no_range_is_dropped(datapath: Datapath, node: Node, kind: Kind, program: str):
    _, index = local_backend(datapath, kind)
    allow(datapath, other_pod(kind))
    request = kind.frame(SOURCES[program](kind), load_balancer(datapath, kind, [index]))
    assert_dropped(datapath, node, program, request)
    assert datapath.counts("lb_count_front", 1) == (0, 0, 1)


@pytest.mark.parametrize("program", SOURCES)
def test_without_endpoints_it_is_dropped_and_only_who_is_allowed_is_refused(
    datapath: Datapath, node: Node, kind: Kind, program: str
):
    source = SOURCES[program](kind)
    allow(datapath, other_pod(kind))
    allow(datapath, lone(source.address), under=2)
    request = kind.frame(source, load_balancer(datapath, kind, []))
    assert_dropped(datapath, node, program, request)
    limit(datapath, under=2)
    datapath.run(program, request, ifindex=node.uplink.ifindex)
    assert datapath.drops() == {NOT_FOR_THEM: 1, DropReason.LB_DROP_NO_ENDPOINT: 1}


# The external client's addresses.
COVERING = {
    IPV4: ("198.51.100.0/24", "198.51.100.8/30", "198.51.100.8/31", "128.0.0.0/1"),
    IPV6: ("2001:db8:100::/64", "2001:db8:100::8/127", "2001:db8:100::9/128", "::/1"),
}
MISSING = {
    IPV4: ("198.51.100.8/32", "198.51.100.128/25", "198.51.101.0/24", "0.0.0.0/1"),
    IPV6: ("2001:db8:100::8/128", "2001:db8:100::80/121", "2001:db8:101::/48", "8000::/1"),
}


def test_the_edges_of_a_range(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    vip = load_balancer(datapath, kind, [index])
    for under, text in enumerate((*COVERING[kind.net], *MISSING[kind.net])):
        allow(datapath, text, under=under)
        limit(datapath, under)
        request = kind.frame(client(kind, CLIENT_PORT + under), vip)
        result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
        assert (result.verdict is Verdict.PASS) is (text in COVERING[kind.net]), text


def test_a_range_within_another_takes_nothing_away(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    wide = ip_network(lone(kind.net.client)).supernet(8)
    allow(datapath, str(wide), lone(kind.net.client), lone(str(wide[0])))
    request = kind.frame(client(kind), load_balancer(datapath, kind, [index]))
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.PASS


def test_ranges_of_others_do_not_count(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    for identity in (1, 3, 1 << 31, (1 << 32) - 1):
        allow(datapath, lone(kind.net.client), under=identity)
    request = kind.frame(client(kind), load_balancer(datapath, kind, [index], under=2))
    assert_dropped(datapath, node, "lb_host_ingress", request)


def test_other_frontends_of_the_service_are_for_everybody(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind)
    load_balancer(datapath, kind, [index])
    frontends = (cluster_ip(datapath, kind, [index]), node_port(datapath, kind, [index]))
    for port, frontend in enumerate(frontends, CLIENT_PORT):
        request = kind.frame(client(kind, port), frontend)
        result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
        assert_same(result.packet, changed(request, target=backend))


@pytest.mark.parametrize("program", ["lb_host_ingress", "lb_pod_ingress"])
def test_a_flow_outlives_a_change_of_ranges_and_new_ones_are_dropped(
    datapath: Datapath, node: Node, kind: Kind, program: str
):
    source = SOURCES[program](kind)
    backend, index = local_backend(datapath, kind)
    allow(datapath, lone(source.address))
    vip = load_balancer(datapath, kind, [index])
    tap = node.pod if "pod" in program else node.uplink
    datapath.run(program, kind.frame(source, vip), ifindex=tap.ifindex)
    limit(datapath, under=2)

    for flags in ("S", "A", "PA"):
        packet = kind.frame(source, vip, flags)
        result = datapath.run(program, packet, ifindex=tap.ifindex)
        assert_same(result.packet, changed(packet, target=backend))
    reply = kind.frame(backend, source, "SA")
    back = program.replace("ingress", "egress")
    result = datapath.run(back, reply, ifindex=tap.ifindex)
    assert_same(result.packet, changed(reply, source=vip))
    assert_dropped(datapath, node, program, kind.frame(source._replace(port=40001), vip))


def test_a_pod_that_may_not_does_not_reach_itself_either(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = local_backend(datapath, kind, kind.net.pod)
    allow(datapath, other_pod(kind))
    vip = load_balancer(datapath, kind, [index])
    assert_dropped(datapath, node, "lb_pod_ingress", kind.frame(pod(kind), vip))

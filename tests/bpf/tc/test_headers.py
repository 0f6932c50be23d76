# SPDX-License-Identifier: Apache-2.0
"""IPv4 options and IPv6 extension headers before the transport header do not hide a packet."""

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import ICMPv6DestUnreach
from scapy.packet import Raw

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.model.address import Family, Protocol
from tests.bpf.harness.datapath import FILTERS, Datapath, Verdict, assert_untouched
from tests.bpf.harness.fragments import HEADERS, header_cases, with_headers
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    KINDS,
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    built,
    changed,
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

CASES = list(header_cases(KINDS))
pytestmark = pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda case: str(case))


@pytest.fixture(autouse=True)
def filters(datapath: Datapath) -> None:
    """Empty filters, so that only the packet's own bytes can match."""
    for name in FILTERS:
        datapath.clear(name)


def test_a_pods_packets_are_translated_both_ways(datapath: Datapath, kind: Kind, name: str):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    for flags in ("S", "A"):
        request = kind.frame(pod(kind), frontend, flags)
        result = datapath.run("lb_pod_ingress", with_headers(request, name))
        assert_same(result.packet, with_headers(changed(request, target=backend), name))
        reply = kind.frame(backend, pod(kind), f"{flags}A" if flags == "S" else flags)
        result = datapath.run("lb_pod_egress", with_headers(reply, name))
        assert_same(result.packet, with_headers(changed(reply, source=frontend), name))


def test_a_node_port_is_found_both_ways(datapath: Datapath, node: Node, kind: Kind, name: str):
    node_addresses(datapath, node)
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    result = datapath.run("lb_host_ingress", with_headers(request, name))
    assert_same(result.packet, with_headers(changed(request, target=backend), name))
    reply = kind.frame(backend, client(kind), "SA")
    result = datapath.run("lb_host_egress", with_headers(reply, name))
    assert_same(result.packet, with_headers(changed(reply, source=frontend), name))


def test_a_packet_leaves_for_another_node(datapath: Datapath, node: Node, kind: Kind, name: str):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    first = kind.frame(client(kind), frontend)
    source = source_of(datapath.run("lb_host_ingress", first, ifindex=node.uplink.ifindex).packet)
    request = kind.frame(client(kind), frontend, "A")
    result = datapath.run(
        "lb_host_ingress", with_headers(request, name), ifindex=node.uplink.ifindex
    )
    assert result.verdict is Verdict.REDIRECT
    expected = changed(request, source=source, target=backend, hops=1)
    assert_same(result.packet, with_headers(expected, name))


def test_a_refusal_quotes_the_headers_and_the_ports(datapath: Datapath, kind: Kind, name: str):
    packet = with_headers(kind.frame(pod(kind), cluster_ip(datapath, kind)), name)
    result = datapath.run("lb_pod_ingress", packet)
    assert result.verdict is Verdict.REDIRECT
    assert datapath.drops() == {DropReason.LB_DROP_NO_ENDPOINT: 1}
    network = packet.payload
    network_length = len(network) - len(kind.frame(pod(kind), pod(kind)).payload)
    network_length += 20 if kind.net.family == Family.IPV4 else 40
    quoted = network_length + (20 if kind.proto is Protocol.TCP else 8)
    error = ICMP(type=3, code=3) if kind.net.family == Family.IPV4 else ICMPv6DestUnreach(code=4)
    answer = kind.packet(network.dst, network.src) / error / Raw(bytes(network)[: min(quoted, 68)])
    answer.src, answer.dst = NODE_MAC, SENDER_MAC
    if kind.net.family == Family.IPV4:
        answer.payload.id = 0
    assert_same(result.packet, built(answer))


def test_strangers_pass_untouched(datapath: Datapath, node: Node, kind: Kind, name: str):
    node_addresses(datapath, node)
    for target in (kind.net.client, kind.net.node):
        packet = with_headers(kind.frame(pod(kind), End(target, 9999)), name)
        for program in ("lb_pod_ingress", "lb_pod_egress", "lb_host_ingress", "lb_host_egress"):
            assert_untouched(datapath, program, packet)


def test_every_kind_of_header_is_there(kind: Kind, name: str):
    assert name in HEADERS[kind.net.family]
    assert len(with_headers(kind.frame(pod(kind), pod(kind)), name)) > len(
        kind.frame(pod(kind), pod(kind))
    )

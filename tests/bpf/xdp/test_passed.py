# SPDX-License-Identifier: Apache-2.0
"""Packets that XDP leaves to tc: counted with the reason, and nothing else has changed."""

from ipaddress import ip_address

import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import BackendFlag, DescFlag, SettingFlag, XdpResult
from ebpflb.dataplane.layout.structs import LbFailures
from tests.bpf.harness.datapath import SNAT_PORTS, Datapath, XdpAction
from tests.bpf.harness.errors import UNREACHABLE, error
from tests.bpf.harness.fragments import HEADERS, fragments, with_headers
from tests.bpf.harness.node import (
    NARROW_ROUTE,
    NO_NEIGHBOUR,
    NO_ROUTE,
    ROUTE_MTU,
    ROUTER_MAC,
    Node,
)
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, built
from tests.bpf.harness.services import (
    BACKEND_PORT,
    client,
    cluster_ip,
    local_backend,
    node_port,
    remote_backend,
    unnamed_backend,
)

pytestmark = pytest.mark.usefixtures("uplinks")


def to_remote(datapath: Datapath, kind: Kind, payload: bytes = b"", address: str = "") -> Packet:
    """A request to a remote backend."""
    _, index = remote_backend(datapath, kind, address)
    return kind.frame(client(kind), node_port(datapath, kind, [index]), payload=payload)


def assert_passes(
    datapath: Datapath, node: Node, packet: Packet, result: XdpResult | None = None
) -> None:
    """`result`: how it is counted, None for not at all."""
    datapath.clear("lb_count_xdp")
    before = datapath.snapshot()
    action, out = datapath.run_xdp(bytes(packet), ifindex=node.uplink.ifindex)
    after = datapath.snapshot()
    assert (action, out) == (XdpAction.PASS, bytes(packet))
    assert set(+datapath.xdp_results()) == ({result} if result else set())
    del before["lb_count_xdp"], after["lb_count_xdp"]
    assert after == before


def test_a_backend_here(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]))
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_LOCAL)


def test_a_backend_on_trial_keeps_its_connection_for_tc(datapath: Datapath, node: Node, kind: Kind):
    backend, index = local_backend(datapath, kind)
    flags = BackendFlag.LB_BACKEND_LOCAL | BackendFlag.LB_BACKEND_TRIAL
    datapath.write_backend(index, backend, kind.proto, flags=flags)
    datapath.maps["lb_failures"].update(u32(index), bytes(LbFailures(in_a_row=5)))
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]))
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_LOCAL)


def test_a_backend_here_as_its_route_says(datapath: Datapath, node: Node, kind: Kind):
    _, index = unnamed_backend(datapath, kind, kind.net.pod)
    packet = kind.frame(client(kind), cluster_ip(datapath, kind, [index]))
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_LOCAL)


def test_a_known_flow_of_a_backend_here(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]))
    datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_LOCAL)


def test_fragments(datapath: Datapath, node: Node, kind: Kind):
    long = to_remote(datapath, kind, bytes(300))
    is_header = kind.net is IPV6
    result = XdpResult.LB_XDP_HEADER if is_header else XdpResult.LB_XDP_FRAGMENT
    for packet in fragments(long, 160):
        assert_passes(datapath, node, packet, result)


def test_options_and_extension_headers(datapath: Datapath, node: Node, kind: Kind):
    packet = to_remote(datapath, kind)
    for name in HEADERS[kind.net.family]:
        assert_passes(datapath, node, with_headers(packet, name), XdpResult.LB_XDP_HEADER)


def test_a_vlan_tag(datapath: Datapath, node: Node, kind: Kind):
    packet = to_remote(datapath, kind)
    tagged = Ether(src=packet.src, dst=packet.dst) / Dot1Q(vlan=5) / packet.payload
    assert_passes(datapath, node, built(tagged))


@pytest.mark.parametrize("address", ["ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", ROUTER_MAC])
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_a_frame_that_is_not_for_this_device_alone(
    datapath: Datapath, node: Node, kind: Kind, address: str, is_known: bool
):
    packet = to_remote(datapath, kind)
    if is_known:
        datapath.run_xdp(bytes(packet), ifindex=node.uplink.ifindex)
    packet.dst = address
    assert_passes(datapath, node, packet)


def test_sctp(datapath: Datapath, node: Node, sctp: Kind):
    assert_passes(datapath, node, to_remote(datapath, sctp), XdpResult.LB_XDP_PROTOCOL)


def test_an_icmp_error(datapath: Datapath, node: Node, kind: Kind):
    packet = to_remote(datapath, kind)
    _, sent = datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    answer = error(kind, kind.net.remote, sent, what=UNREACHABLE)
    assert_passes(datapath, node, answer, XdpResult.LB_XDP_PROTOCOL)


def test_a_checksum_that_is_left_to_a_device(datapath: Datapath, node: Node, kind: Kind):
    packet = to_remote(datapath, kind, b"data")
    packet.payload.payload.chksum = pseudo_sum(packet)
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_CHECKSUM)


def pseudo_sum(packet: Packet) -> int:
    """The checksum field of a packet with CHECKSUM_PARTIAL."""
    network = packet.payload
    transport = bytes(network.payload)
    addresses = inet_pton(network.src), inet_pton(network.dst)
    number = packet.proto if IP in packet else packet.nh
    header = b"".join(addresses) + bytes([0, number]) + len(transport).to_bytes(2, "big")
    words = (int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    return sum(words) % 0xFFFF or 0xFFFF


def inet_pton(text: str) -> bytes:
    return ip_address(text).packed


@pytest.mark.parametrize("routes", [NO_ROUTE, NO_NEIGHBOUR], ids=["route", "neighbour"])
def test_no_way_to_the_backend(datapath: Datapath, node: Node, kind: Kind, routes: dict[str, str]):
    packet = to_remote(datapath, kind, address=routes[kind.net.remote])
    result = XdpResult.LB_XDP_ROUTE if routes is NO_ROUTE else XdpResult.LB_XDP_NEIGHBOUR
    assert_passes(datapath, node, packet, result)


def test_too_big_for_the_route(datapath: Datapath, node: Node, kind: Kind):
    address = NARROW_ROUTE[kind.net.remote]
    packet = to_remote(datapath, kind, bytes(ROUTE_MTU), address)
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_ROUTE)


def test_the_last_hop(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind)
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]), ttl=1)
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_ROUTE)


def test_a_device_without_xdp(datapath: Datapath, node: Node, kind: Kind):
    datapath.device(node.overlay.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay)
    assert_passes(datapath, node, to_remote(datapath, kind), XdpResult.LB_XDP_DEVICE)


def test_no_endpoint(datapath: Datapath, node: Node, kind: Kind):
    packet = kind.frame(client(kind), node_port(datapath, kind))
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_REFUSED)


def test_a_client_out_of_the_source_ranges(datapath: Datapath, node: Node, kind: Kind):
    packet = to_remote(datapath, kind)
    datapath.flag_frontends(DescFlag.LB_DESC_SOURCE_RANGES)
    assert_passes(datapath, node, packet, XdpResult.LB_XDP_REFUSED)


def test_no_source_port_is_free(datapath: Datapath, node: Node, tcp: Kind):
    datapath.settings(snat_ports=((5000, 5000), (5000, 5000)))
    frontend = End(tcp.net.node, to_remote(datapath, tcp).payload.payload.dport)
    for port in (40000, 40001):
        packet = tcp.frame(client(tcp, port), frontend)
        result = datapath.run_xdp(bytes(packet), ifindex=node.uplink.ifindex)
    assert result == (XdpAction.PASS, bytes(packet))
    assert datapath.xdp_results()[XdpResult.LB_XDP_REFUSED] == 1


def test_the_stack_routes(datapath: Datapath, node: Node, kind: Kind):
    datapath.settings(SNAT_PORTS, flags=SettingFlag.LB_SETTING_VIA_STACK)
    assert_passes(datapath, node, to_remote(datapath, kind), XdpResult.LB_XDP_STACK)


def test_what_is_not_for_a_service(datapath: Datapath, node: Node, kind: Kind):
    other = kind.frame(client(kind), End(kind.net.pod, BACKEND_PORT))
    assert_passes(datapath, node, other)
    ssh = kind.frame(client(kind), End(kind.net.node, 22))
    assert_passes(datapath, node, ssh)


def test_the_middle_of_an_unknown_connection(datapath: Datapath, node: Node, tcp: Kind):
    _, index = remote_backend(datapath, tcp)
    packet = tcp.frame(client(tcp), node_port(datapath, tcp, [index]), "PA")
    assert_passes(datapath, node, packet)


def test_every_truncated_frame(datapath: Datapath, node: Node, kind: Kind):
    whole = bytes(to_remote(datapath, kind))
    headers = 14 + (20 if kind.net is IPV4 else 40)
    for size in range(14, len(whole)):
        action, out = datapath.run_xdp(whole[:size], ifindex=node.uplink.ifindex)
        assert (action, out) == (XdpAction.PASS, whole[:size]), (size, headers)

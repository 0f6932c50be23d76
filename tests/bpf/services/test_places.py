# SPDX-License-Identifier: Apache-2.0
"""Addresses and devices hash to places in arrays; those that collide are still told apart."""

import pytest

from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.structs import LbAddrState
from tests.bpf.harness.datapath import Datapath, Verdict, addr, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, assert_same, changed, source_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    CLUSTER_PORT,
    client,
    local_backend,
    node_port,
    remote_backend,
    same_place,
)

pytestmark = pytest.mark.usefixtures("addresses")

NODE = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
OTHER_PORTS = (CLIENT_PORT + 1, CLIENT_PORT + 2)
SAME_END = {"192.0.2.1": "198.51.2.1", "2001:db8:2::1": "2001:db8:9::1"}


def assert_served(
    datapath: Datapath, node: Node, kind: Kind, frontend: End, backend: End, port: int = CLIENT_PORT
) -> None:
    packet = kind.frame(client(kind, port), frontend)
    result = datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    assert_same(result.packet, changed(packet, target=backend))


def beside(kind: Kind, how: str) -> str:
    """Another address with the same last two bytes as the node's, or the same hash place."""
    return SAME_END[kind.net.node] if how == "end" else same_place(kind.net.node)


@pytest.mark.parametrize("how", ["end", "place"])
@pytest.mark.parametrize("which", [0, 1])
def test_two_addresses_that_take_node_ports(
    datapath: Datapath, node: Node, kind: Kind, how: str, which: int
):
    other = beside(kind, how)
    datapath.address(other, NODE)
    backend, index = local_backend(datapath, kind)
    port = node_port(datapath, kind, [index]).port
    assert_served(datapath, node, kind, End((kind.net.node, other)[which], port), backend)


@pytest.mark.parametrize("how", ["end", "place"])
@pytest.mark.parametrize("vip_is_named", [True, False])
def test_a_vip_and_an_address_of_the_node(
    datapath: Datapath, node: Node, kind: Kind, how: str, vip_is_named: bool
):
    vip = End(beside(kind, how), CLUSTER_PORT)
    datapath.address(vip.address, AddrFlag.LB_ADDR_CLUSTER_IP)
    if not vip_is_named:
        datapath.address(kind.net.node, NODE)
    backend, index = local_backend(datapath, kind)
    datapath.frontend(vip, kind.proto, local=[index], others=[index])
    frontend = node_port(datapath, kind, [index])
    assert_served(datapath, node, kind, vip, backend)
    assert_served(datapath, node, kind, frontend, backend, OTHER_PORTS[0])
    # A NodePort does not make the VIP accept its port: the VIP's unknown ports are refused.
    refused = kind.frame(client(kind, OTHER_PORTS[1]), End(vip.address, frontend.port))
    result = datapath.run("lb_host_ingress", refused, ifindex=node.uplink.ifindex)
    assert result.verdict is not Verdict.PASS
    # The node's loopback addresses serve its own processes.
    passing = kind.frame(client(kind, OTHER_PORTS[1]), End(kind.net.node, CLUSTER_PORT))
    assert_untouched(datapath, "lb_host_ingress", passing, ifindex=node.uplink.ifindex)


def test_an_index_that_another_address_has_now(datapath: Datapath, node: Node, kind: Kind):
    """The removed address's place still names the index."""
    gone = same_place(kind.net.node)
    datapath.address(gone, AddrFlag.LB_ADDR_NODE)
    ((index, _),) = [
        each for each in datapath.maps["lb_addr_flags"].items() if each[1][8:] == bytes(addr(gone))
    ]
    datapath.maps["lb_addrs"].delete(bytes(addr(gone)))
    other = LbAddrState(flags=NODE, addr=addr("203.0.113.77"))
    datapath.maps["lb_addr_flags"].update(index, bytes(other))
    backend, backend_index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [backend_index])
    packet = kind.frame(client(kind), frontend._replace(address=gone))
    assert_untouched(datapath, "lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    assert_served(datapath, node, kind, frontend, backend)


@pytest.mark.parametrize("which", ["array", "hash"])
def test_two_devices_with_one_place(datapath: Datapath, node: Node, kind: Kind, which: str):
    ours, far = node.overlay.ifindex, node.overlay.ifindex + UPLINKS
    datapath.device(far, snat4="192.0.2.99", snat6="2001:db8:2::99")
    if which == "array":
        datapath.device(ours, snat4=IPV4.overlay, snat6=IPV6.overlay)
    _, index = remote_backend(datapath, kind)
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]))
    result = datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    assert source_of(result.packet).address == kind.net.overlay


def test_a_device_that_is_in_neither_map_leads_to_pods_here(
    datapath: Datapath, node: Node, kind: Kind
):
    datapath.device(node.overlay.ifindex + UPLINKS, snat4="192.0.2.99", snat6="2001:db8:2::99")
    datapath.maps["lb_devices"].delete(u32(node.overlay.ifindex))
    _, index = remote_backend(datapath, kind)
    packet = kind.frame(client(kind), node_port(datapath, kind, [index]))
    result = datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.PASS
    assert source_of(result.packet).address == client(kind).address

# SPDX-License-Identifier: Apache-2.0
from sys import byteorder

import pytest

from ebpflb.dataplane.explain import hooks
from ebpflb.dataplane.explain.hooks import client_at
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import Client, ClientKind
from ebpflb.dataplane.kernel.rtnetlink import device_name, route_to
from ebpflb.dataplane.layout.enums import NetnsFlag
from ebpflb.dataplane.layout.structs import LbNetns
from ebpflb.errors import ProbeError
from ebpflb.model.address import Family, format_address, parse_address
from tests.unit.dataplane.explain.node import CLIENT, NODE, OTHER_NODE, POD, VETH, Node, route

COVERED = NetnsFlag.LB_NETNS_COVERED
BRIDGED = "203.0.113.7"
COOKIE = 77


@pytest.fixture
def node():
    made = Node()
    netns = LbNetns(flags=COVERED, ifindex=VETH)
    made.maps["lb_netns"].update(COOKIE.to_bytes(8, byteorder), bytes(netns))
    return made


def found_at(node, text, port=0):
    return client_at(Lookups(node.maps), parse_address(text), Family.IPV4, port, route)


def test_an_address_of_the_node_is_the_nodes(node):
    for text in (NODE, OTHER_NODE):
        assert found_at(node, text, 40) == Client(
            ClientKind.HOST, parse_address(NODE), NetnsFlag.LB_NETNS_HOST, port=40
        )


def test_what_is_behind_a_pods_device_is_that_pod(node):
    pod = parse_address(POD)
    assert found_at(node, POD) == Client(ClientKind.POD, pod, COVERED, COOKIE, VETH)
    node.maps["lb_netns"].delete(COOKIE.to_bytes(8, byteorder))
    assert found_at(node, POD) == Client(ClientKind.POD, pod, NetnsFlag(0), 0, VETH)


def test_what_is_behind_a_host_device_is_elsewhere(node):
    found = found_at(node, CLIENT)
    assert (found.kind, found.ifindex) == (ClientKind.OUTSIDE, 2)


@pytest.mark.parametrize("cookie", [COOKIE, 78])
def test_behind_a_bridge_the_namespace_decides(node, monkeypatch, cookie):
    monkeypatch.setattr(hooks, "visit_others", lambda look: look())
    monkeypatch.setattr(hooks, "own_cookie", lambda: cookie)
    monkeypatch.setattr(hooks, "read_addresses", lambda _: [FakeAddress()])
    found = found_at(node, BRIDGED)
    known = cookie == COOKIE
    assert format_address(found.address) == BRIDGED
    assert found[2:5] == ((COVERED, COOKIE, VETH) if known else (NetnsFlag(0), cookie, 0))


class FakeAddress:
    address = parse_address(BRIDGED)


def test_an_address_that_nobody_here_has_is_elsewhere(node, monkeypatch):
    monkeypatch.setattr(hooks, "visit_others", lambda _: None)
    assert found_at(node, BRIDGED).kind is ClientKind.OUTSIDE


def test_namespaces_that_cannot_be_entered_give_one_line(node, monkeypatch):
    def refuse(_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(hooks, "visit_others", refuse)
    with pytest.raises(ProbeError, match="cannot look into network namespaces"):
        found_at(node, BRIDGED)


def test_routes_are_asked_of_the_kernel():
    found = route_to(parse_address("127.0.0.1"))
    assert found is not None
    assert (found.is_local, device_name(found.ifindex)) == (True, "lo")
    assert device_name(1 << 30) == f"device {1 << 30}"

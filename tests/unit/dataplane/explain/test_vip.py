# SPDX-License-Identifier: Apache-2.0
"""What is told of packets to a Service's address that no frontend takes."""

import pytest

from ebpflb.dataplane.explain.hooks import walk
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import NO_LOCAL_PASSES, Client, ClientKind
from ebpflb.dataplane.kernel.rtnetlink import Route
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind, DropReason, NetnsFlag
from ebpflb.model.address import parse_address
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.plan import Choice, FrontendType, IfEmpty
from ebpflb.words.connections import Fate
from tests.unit.dataplane.desired import backends, frontend, key
from tests.unit.dataplane.explain.node import CLIENT, NODE, POD, UPLINK, VETH, Node

VIP, PORT, OTHER_PORT = "192.0.2.7", 80, 81
SECOND_UPLINK = 3
ROUTER = parse_address("192.0.2.254")
BACK = Route(UPLINK, is_local=False, gateway=ROUTER)
REFUSED = Fate.REFUSED, DropReason.LB_DROP_UNKNOWN_PORT
DROPPED = Fate.DROPPED, DropReason.LB_DROP_UNSERVED_PORT
PASSES = Fate.PASSES, None
OUTSIDE = Client(ClientKind.OUTSIDE, parse_address(CLIENT), ifindex=UPLINK)
HERE = (
    Client(ClientKind.POD, parse_address(POD), NetnsFlag.LB_NETNS_COVERED, 77, VETH),
    Client(ClientKind.HOST, parse_address(NODE), NetnsFlag.LB_NETNS_HOST),
)


@pytest.fixture
def node() -> Node:
    found = Node()
    found.device(SECOND_UPLINK, DeviceKind.LB_DEVICE_HOST, NODE)
    return found


def told(node: Node, client: Client, wish: Unserved | None, way: Route | None, port=OTHER_PORT):
    node.serve(frontend(VIP, type=FrontendType.LOAD_BALANCER, unserved=wish))
    return walk(Lookups(node.maps), client, key(VIP, port), lambda _: way)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (BACK, REFUSED),
        (Route(UPLINK, is_local=False), REFUSED),
        (Route(SECOND_UPLINK, is_local=False, gateway=ROUTER), REFUSED),
        (Route(SECOND_UPLINK, is_local=False), PASSES),
        (Route(VETH, is_local=False, gateway=ROUTER), PASSES),
        (Route(99, is_local=False, gateway=ROUTER), PASSES),
        (Route(1, is_local=True), PASSES),
        (None, PASSES),
    ],
)
def test_the_route_decides_whether_the_address_is_here(node, way, expected):
    step = told(node, OUTSIDE, None, way)[0]
    assert (step.fate, step.reason) == expected


@pytest.mark.parametrize(
    ("wish", "expected"),
    [(Unserved.REJECT, REFUSED), (Unserved.DROP, DROPPED), (Unserved.PASS, PASSES)],
)
def test_what_a_service_asks_for_comes_first(node, wish, expected):
    way = BACK if wish is Unserved.PASS else None
    step = told(node, OUTSIDE, wish, way)[0]
    assert (step.fate, step.reason) == expected


@pytest.mark.parametrize("wish", [None, *Unserved])
@pytest.mark.parametrize("client", HERE, ids=["pod", "host"])
def test_clients_of_this_node_pass(node, client, wish):
    steps = told(node, client, wish, BACK)
    assert {step.fate for step in steps} == {Fate.PASSES}
    assert "left to the route" in steps[0].why


def test_an_address_of_the_node_is_left_alone(node):
    node.sync.set_node_addresses({parse_address(VIP): AddrFlag.LB_ADDR_NODE})
    assert told(node, OUTSIDE, Unserved.DROP, BACK)[0].fate is Fate.PASSES


def test_without_a_local_endpoint_a_service_may_let_packets_pass(node):
    nothing = Choice((), IfEmpty.PASS)
    node.serve(frontend(VIP, backends(POD), type=FrontendType.LOAD_BALANCER, others=nothing))
    step = walk(Lookups(node.maps), OUTSIDE, key(VIP, PORT), lambda _: BACK)[0]
    assert (step.fate, step.why) == (Fate.PASSES, NO_LOCAL_PASSES)
    (socket, *_) = walk(Lookups(node.maps), HERE[1], key(VIP, PORT), lambda _: BACK)
    assert socket.fate is Fate.TRANSLATED


def test_a_health_check_is_for_clients_outside(node):
    agent = backends(NODE, local=True)
    nothing = Choice((), IfEmpty.PASS)
    node.serve(frontend(VIP, agent, type=FrontendType.LOAD_BALANCER, local=nothing))
    maps = Lookups(node.maps)
    assert walk(maps, OUTSIDE, key(VIP, PORT), lambda _: BACK)[0].fate is Fate.TRANSLATED
    for client in HERE:
        fates = {step.fate for step in walk(maps, client, key(VIP, PORT), lambda _: BACK)}
        assert fates == {Fate.PASSES}

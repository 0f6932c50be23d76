# SPDX-License-Identifier: Apache-2.0
"""Tunnels: the targets of packets for remote pods, as nodes and Services are added and removed."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.address import Address, Family, family_of, format_address
from ebpflb.model.changes import Changes
from ebpflb.model.dsr import Peer, Reachability, Tunnels
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.plan import Defaults, Frontend, plan_service
from ebpflb.model.service import Dsr, ServiceName
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_port,
)

WEB, SHOP = ServiceName("default", "web"), ServiceName("default", "shop")
POD, POD6 = "10.1.0.2", "fd00:1::2"
THERE = node(OTHER_NODE, addresses=("192.0.2.2", "2001:db8::2"))


def frontends(*endpoints: Endpoint, dsr: bool | None = None, **fields: int) -> tuple[Frontend, ...]:
    """Of default/web with a NodePort, in the families of its endpoints."""
    families = {family_of(each.address) for each in endpoints}
    addresses = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00::10"}
    ports = [service_port(addresses[each], **{"node_port": 30080, **fields}) for each in families]
    pieces = [
        endpoint_slice(
            f"web-{family}",
            *(each for each in endpoints if family_of(each.address) is family),
            family=family,
        )
        for family in families
    ]
    wanted = service("web", *ports, dsr=dsr)
    return plan_service(wanted, pieces, node(), Defaults(dsr=Dsr.ALL)) if ports else ()


def elsewhere(*pods: str, on: str | None = OTHER_NODE) -> tuple[Frontend, ...]:
    return frontends(*(endpoint(pod, on) for pod in pods))


def reachable(*names: str, families: Iterable[Family] = Family) -> dict[Peer, Reachability]:
    return {Peer(name, each): Reachability.REACHABLE for name in names for each in families}


class Followed:
    """Tunnels, all nodes reachable, and a receiver's state after every change."""

    def __init__(self) -> None:
        self.tunnels = Tunnels()
        self.tunnels.set_reachable(reachable(OTHER_NODE, "node-c", "b", "c"))
        self._pods: dict[Address, Address] = {}
        self._undecided: dict[Address, Address] = {}
        self._peers: set[Address] = set()

    def _follow(self) -> None:
        change = self.tunnels.take()
        for pod, target in change.pods.items():
            self._undecided.pop(pod, None)
            if target:
                self._pods[pod] = target
            else:
                self._pods.pop(pod, None)
        self._undecided.update(change.undecided)
        for peer, is_one in change.peers.items():
            (self._peers.add if is_one else self._peers.discard)(peer)
        assert not self.tunnels.has_changed

    @property
    def pods(self) -> dict[str, str]:
        self._follow()
        return {format_address(pod): format_address(to) for pod, to in self._pods.items()}

    @property
    def undecided(self) -> dict[str, str]:
        self._follow()
        return {format_address(pod): format_address(to) for pod, to in self._undecided.items()}

    @property
    def peers(self) -> set[str]:
        self._follow()
        return set(map(format_address, self._peers))


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_packets_for_a_pod_go_to_the_internal_address_of_its_node_in_its_family(followed: Followed):
    followed.tunnels.set_services({WEB: elsewhere(POD, POD6)})
    assert followed.pods == {}
    followed.tunnels.set_node(OTHER_NODE, THERE)
    assert followed.pods == {POD: "192.0.2.2", POD6: "2001:db8::2"}
    moved = replace(THERE, addresses=(address("192.0.2.3"), *THERE.addresses))
    followed.tunnels.set_node(OTHER_NODE, moved)
    assert followed.pods == {POD: "192.0.2.3", POD6: "2001:db8::2"}
    followed.tunnels.set_node(OTHER_NODE, replace(moved, external=THERE.addresses))
    assert followed.pods == {POD: "192.0.2.3"}
    followed.tunnels.set_node(OTHER_NODE, None)
    assert followed.pods == {}


@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(elsewhere(POD, on=NODE), id="of this node"),
        pytest.param(elsewhere(POD, on=None), id="of no known node"),
        pytest.param(elsewhere(POD, on="node-z"), id="of an unknown node"),
        pytest.param(frontends(endpoint(POD, OTHER_NODE), dsr=False), id="without DSR"),
        pytest.param(frontends(endpoint(POD, OTHER_NODE), node_port=0), id="nothing external"),
        pytest.param(frontends(endpoint(POD, OTHER_NODE, ready=False)), id="not used"),
    ],
)
def test_other_pods_get_nothing_in_a_tunnel(followed: Followed, planned: tuple[Frontend, ...]):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_services({WEB: planned})
    assert followed.pods == {}


def test_a_pod_is_sent_to_as_long_as_any_service_has_it(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_services({WEB: elsewhere(POD), SHOP: elsewhere(POD, "10.1.0.3")})
    assert followed.pods == {POD: "192.0.2.2", "10.1.0.3": "192.0.2.2"}
    followed.tunnels.set_services({SHOP: ()})
    assert followed.pods == {POD: "192.0.2.2"}
    followed.tunnels.set_services({SHOP: elsewhere("10.1.0.3")}, others_gone=True)
    assert followed.pods == {"10.1.0.3": "192.0.2.2"}


def test_where_services_disagree_on_the_node_of_a_pod_nothing_goes_to_either(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_node("node-c", node("node-c", addresses=("192.0.2.3",)))
    followed.tunnels.set_services({WEB: elsewhere(POD), SHOP: elsewhere(POD, on="node-c")})
    assert followed.pods == {}
    followed.tunnels.set_services({WEB: ()})
    assert followed.pods == {POD: "192.0.2.3"}


def test_nor_where_the_families_or_ports_of_one_service_disagree(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_node("node-c", node("node-c", addresses=("192.0.2.3",)))
    both = (*elsewhere(POD), *elsewhere(POD, on="node-c"), *elsewhere(POD))
    followed.tunnels.set_services({WEB: both})
    assert followed.pods == {}


def test_a_node_that_cannot_be_reached_gets_nothing(followed: Followed):
    followed.tunnels.set_services({WEB: elsewhere(POD), SHOP: elsewhere("10.1.0.3", on="node-c")})
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_node("node-c", node("node-c", addresses=("192.0.2.3",)))
    assert followed.pods == {POD: "192.0.2.2", "10.1.0.3": "192.0.2.3"}
    others_too = reachable("node-c", "node-d")
    followed.tunnels.set_reachable(others_too)
    assert followed.pods == {"10.1.0.3": "192.0.2.3"}
    assert followed.peers == {"192.0.2.2", "2001:db8::2", "192.0.2.3"}
    followed.tunnels.set_reachable(dict(others_too))
    assert not followed.tunnels.has_changed
    followed.tunnels.set_reachable(others_too | reachable(OTHER_NODE))
    assert followed.pods == {POD: "192.0.2.2", "10.1.0.3": "192.0.2.3"}


def test_of_a_node_that_has_not_answered_yet_nothing_is_decided(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_services({WEB: elsewhere(POD)})
    assert (followed.pods, followed.undecided) == ({POD: "192.0.2.2"}, {})
    followed.tunnels.set_reachable({})
    assert (followed.pods, followed.undecided) == ({}, {POD: "192.0.2.2"})
    silent = {Peer(OTHER_NODE, Family.IPV4): Reachability.UNREACHABLE}
    followed.tunnels.set_reachable(silent)
    assert (followed.pods, followed.undecided) == ({}, {})
    followed.tunnels.set_reachable({})
    followed.tunnels.take()
    followed.tunnels.set_reachable({Peer(OTHER_NODE, Family.IPV4): Reachability.UNKNOWN})
    assert not followed.tunnels.has_changed
    followed.tunnels.set_node(OTHER_NODE, None)
    assert (followed.pods, followed.undecided) == ({}, {})


def test_a_node_may_be_reachable_in_one_family(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_services({WEB: elsewhere(POD, POD6)})
    followed.tunnels.set_reachable(reachable(OTHER_NODE, families=[Family.IPV4]))
    assert followed.pods == {POD: "192.0.2.2"}
    followed.tunnels.set_reachable(reachable(OTHER_NODE, families=[Family.IPV6]))
    assert followed.pods == {POD6: "2001:db8::2"}
    followed.tunnels.set_reachable({})
    assert followed.pods == {}


def targets(tunnels: Tunnels) -> set[tuple[str, str]] | None:
    found = tunnels.take_targets()
    if found is None:
        return None
    assert all(family_of(each) is peer.family for peer, each in found.items())
    return {(peer.node, format_address(each)) for peer, each in found.items()}


def test_nodes_with_pods_are_asked_in_the_families_of_these():
    tunnels = Tunnels()
    assert targets(tunnels) is None
    tunnels.set_node(OTHER_NODE, THERE)
    tunnels.set_node("node-c", node("node-c", addresses=("192.0.2.3",)))
    assert targets(tunnels) == set()
    tunnels.set_services({WEB: elsewhere(POD), SHOP: elsewhere(POD, "10.1.0.3")})
    assert targets(tunnels) == {(OTHER_NODE, "192.0.2.2")}
    tunnels.set_services({WEB: elsewhere(POD, "10.1.0.4"), SHOP: elsewhere("10.1.0.3")})
    assert targets(tunnels) is None
    tunnels.set_services({WEB: elsewhere(POD, POD6)})
    assert targets(tunnels) == {(OTHER_NODE, "192.0.2.2"), (OTHER_NODE, "2001:db8::2")}
    tunnels.set_services({WEB: elsewhere(POD, on="node-c"), SHOP: ()})
    assert targets(tunnels) == {("node-c", "192.0.2.3")}
    tunnels.set_services({WEB: ()})
    assert targets(tunnels) == set()


def test_nodes_are_asked_at_the_addresses_to_which_packets_would_go():
    tunnels = Tunnels()
    tunnels.set_services({WEB: elsewhere(POD, POD6)})
    assert targets(tunnels) == set()
    tunnels.set_node(OTHER_NODE, replace(THERE, external=(address("2001:db8::2"),)))
    assert targets(tunnels) == {(OTHER_NODE, "192.0.2.2")}
    tunnels.set_node(OTHER_NODE, node(OTHER_NODE, addresses=("192.0.2.9",)))
    assert targets(tunnels) == {(OTHER_NODE, "192.0.2.9")}
    tunnels.set_node(OTHER_NODE, None)
    assert targets(tunnels) == set()
    assert targets(tunnels) is None


def test_peers_are_all_addresses_of_other_nodes(followed: Followed):
    external = (address("203.0.113.2"),)
    followed.tunnels.set_node(
        OTHER_NODE, Node(OTHER_NODE, "", THERE.addresses + external, external=external)
    )
    followed.tunnels.set_node("node-c", node("node-c", addresses=("192.0.2.3", "203.0.113.2")))
    assert followed.peers == {"192.0.2.2", "2001:db8::2", "192.0.2.3", "203.0.113.2"}
    followed.tunnels.set_node(OTHER_NODE, None)
    assert followed.peers == {"192.0.2.3", "203.0.113.2"}


def test_an_address_of_this_node_is_no_peer(followed: Followed):
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.set_own(node(addresses=("192.0.2.1", "192.0.2.2")))
    assert followed.peers == {"2001:db8::2"}
    followed.tunnels.set_own(None)
    assert followed.peers == {"192.0.2.2", "2001:db8::2"}


def test_a_change_says_by_which_addresses_others_know_this_node(followed: Followed):
    followed.tunnels.set_own(node(addresses=("192.0.2.1",)))
    has_changed = followed.tunnels.has_changed
    assert has_changed
    assert followed.tunnels.take().own == (address("192.0.2.1"),)
    followed.tunnels.set_own(node(addresses=("192.0.2.1",), zone="other"))
    assert not followed.tunnels.has_changed
    assert followed.tunnels.take() == ({}, {}, (address("192.0.2.1"),), {})


def test_a_node_that_only_gets_another_zone_changes_nothing(followed: Followed):
    followed.tunnels.set_services({WEB: elsewhere(POD)})
    followed.tunnels.set_node(OTHER_NODE, THERE)
    followed.tunnels.take()
    followed.tunnels.set_node(OTHER_NODE, replace(THERE, zone="other"))
    assert not followed.tunnels.has_changed


@pytest.mark.parametrize("option", list(Dsr))
def test_other_nodes_count_where_a_service_may_have_dsr(option: Dsr):
    changes = Changes(NODE, defaults=Defaults(dsr=option))
    changes.set(node(addresses=("192.0.2.1",)))
    changes.set(THERE)
    changes.set(node("node-c", addresses=("192.0.2.3",)))
    changes.remove(key_of(node("node-c")))
    assert changes.node == node(addresses=("192.0.2.1",))
    if option is Dsr.OFF:
        assert changes.tunnels is None
        return
    assert changes.tunnels
    change = changes.tunnels.take()
    assert change.own == (address("192.0.2.1"),)
    peers = {format_address(each) for each, is_one in change.peers.items() if is_one}
    assert peers == {"192.0.2.2", "2001:db8::2"}


NAMES = st.sampled_from(["b", "c"])
PEERS = st.builds(Peer, NAMES, st.sampled_from(Family))
FOUND = st.dictionaries(PEERS, st.sampled_from(Reachability))
IPS = st.sampled_from(["192.0.2.2", "192.0.2.3", "192.0.2.4"])
NODES = st.builds(
    lambda name, ips: (name, node(name, addresses=tuple(ips))), NAMES, st.lists(IPS, unique=True)
)
PLANS = st.builds(
    lambda name, pods: (
        ServiceName("default", name),
        frontends(*(endpoint(pod, where) for pod, where in pods.items())),
    ),
    st.sampled_from(["web", "shop"]),
    st.dictionaries(st.sampled_from([POD, "10.1.0.3"]), NAMES),
)
STEPS = st.one_of(
    st.tuples(st.just("set_node"), NODES | st.tuples(NAMES, st.none())),
    st.tuples(st.just("set_services"), PLANS.map(lambda plan: ({plan[0]: plan[1]},))),
    st.tuples(st.just("set_reachable"), st.tuples(FOUND)),
    st.tuples(st.just("set_own"), st.tuples(st.none() | NODES.map(lambda each: each[1]))),
)


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=12))
def test_whoever_takes_changes_at_any_time_has_what_the_last_state_alone_gives(steps):
    followed, last = Followed(), Followed().tunnels
    final: dict[tuple[str, object], tuple[object, ...]] = {}
    for (name, given_), is_taken in steps:
        getattr(followed.tunnels, name)(*given_)
        first = given_[0]
        subject = next(iter(first), None) if isinstance(first, Mapping) else first
        of_subject = name in ("set_node", "set_services")
        final[name, subject if of_subject else None] = given_
        if is_taken:
            _ = followed.pods
    for (name, _), given_ in final.items():
        getattr(last, name)(*given_)
    alone = Followed()
    alone.tunnels = last
    assert (followed.pods, followed.peers) == (alone.pods, alone.peers)
    assert followed.undecided == alone.undecided
    assert (targets(followed.tunnels) or set()) == (targets(alone.tunnels) or set())

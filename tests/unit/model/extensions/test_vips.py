# SPDX-License-Identifier: Apache-2.0
"""Load-balancer IPs and external IPs: what is planned for packets that no endpoint here gets."""

from dataclasses import replace

import pytest

from ebpflb.model.address import Protocol, format_address
from ebpflb.model.admission.claims import Conflict
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.node import Node
from ebpflb.model.plan import (
    HEALTH_CHECK,
    Backend,
    Choice,
    Frontend,
    FrontendKey,
    FrontendType,
    IfEmpty,
    frontend_keys,
    plan_service,
)
from ebpflb.model.service import TrafficPolicy
from ebpflb.words.connections import Fate
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
from tests.unit.model.known import known

VIP, VIP6, EXTERNAL_IP = "203.0.113.1", "2001:db8:113::1", "203.0.113.2"
HERE, THERE = endpoint("10.1.0.1"), endpoint("10.1.0.2", OTHER_NODE)
LOCAL = TrafficPolicy.LOCAL
PORT = service_port(
    node_port=30080, external_ips=(address(EXTERNAL_IP),), load_balancer_ips=(address(VIP),)
)
LOCAL_PORT = replace(PORT, external_policy=LOCAL)
HEALTH = 32000


def by_type(port, *endpoints, **annotated) -> dict[FrontendType, Frontend]:
    planned = plan_service(
        service("web", port, **annotated), [endpoint_slice("web-1", *endpoints)], node()
    )
    return {each.type: each for each in planned}


@pytest.mark.parametrize("wish", [None, *Unserved])
def test_external_addresses_have_the_wish_for_their_other_ports(wish):
    found = by_type(PORT, HERE, vip_unserved=wish)
    assert {kind: each.unserved for kind, each in found.items()} == {
        FrontendType.CLUSTER_IP: None,
        FrontendType.NODE_PORT: None,
        FrontendType.EXTERNAL_IP: wish,
        FrontendType.LOAD_BALANCER: wish,
    }


@pytest.mark.parametrize(("endpoints", "without"), [((), IfEmpty.REFUSE), ((THERE,), IfEmpty.DROP)])
def test_without_an_endpoint_here_clients_outside_pass_if_asked_for(endpoints, without):
    for wish, expected in ((NoLocalEndpoint.PASS, IfEmpty.PASS), (NoLocalEndpoint.DROP, without)):
        found = by_type(LOCAL_PORT, *endpoints, no_local_endpoint=wish)
        assert {kind: each.others.if_empty for kind, each in found.items()} == {
            FrontendType.CLUSTER_IP: IfEmpty.REFUSE,
            FrontendType.NODE_PORT: without,
            FrontendType.EXTERNAL_IP: expected,
            FrontendType.LOAD_BALANCER: expected,
        }
        assert found[FrontendType.LOAD_BALANCER].local == found[FrontendType.CLUSTER_IP].local


def test_an_endpoint_here_serves_and_unknown_connections_still_pass():
    found = by_type(LOCAL_PORT, HERE, no_local_endpoint=NoLocalEndpoint.PASS)
    others = found[FrontendType.LOAD_BALANCER].others
    assert (len(others.backends), others.if_empty) == (1, IfEmpty.PASS)


def test_under_policy_cluster_nothing_passes():
    found = by_type(PORT, no_local_endpoint=NoLocalEndpoint.PASS)
    assert {each.others.if_empty for each in found.values()} == {IfEmpty.REFUSE}


def test_what_becomes_of_a_connection_without_backends():
    assert {each: each.fate for each in IfEmpty} == {
        IfEmpty.REFUSE: Fate.REFUSED,
        IfEmpty.DROP: Fate.DROPPED,
        IfEmpty.PASS: Fate.PASSES,
    }


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ((), set()),
        ((THERE,), {FrontendType.CLUSTER_IP}),
        (
            (HERE,),
            {FrontendType.CLUSTER_IP, FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER},
        ),
    ],
)
def test_addresses_answer_pings_while_they_serve_clients_outside(endpoints, expected):
    found = by_type(LOCAL_PORT, *endpoints)
    assert {kind for kind, each in found.items() if each.answers_pings} == expected


# The health check node port


DUAL = (
    replace(LOCAL_PORT, health_check_node_port=HEALTH),
    service_port(
        "fd00::10",
        load_balancer_ips=(address(VIP6),),
        external_policy=LOCAL,
        health_check_node_port=HEALTH,
    ),
)
OWN = Node(NODE, addresses=(address("192.0.2.1"), address("2001:db8:2::1")))


def checks(frontends) -> dict[str, Frontend]:
    return {
        format_address(each.key.address): each
        for each in frontends
        if each.service.port == HEALTH_CHECK
    }


def test_load_balancers_may_check_the_node_at_their_own_addresses():
    found = checks(plan_service(service("web", *DUAL), [], OWN))
    assert set(found) == {VIP, VIP6}
    check = found[VIP]
    assert check.key == FrontendKey(address(VIP), HEALTH, Protocol.TCP)
    agent = Backend(address("192.0.2.1"), HEALTH, local=True, terminating=False)
    assert check.others == Choice((agent,), IfEmpty.REFUSE)
    assert check.local == Choice((), IfEmpty.PASS)
    assert found[VIP6].others.backends[0].address == address("2001:db8:2::1")


def test_it_is_open_to_those_outside_the_source_ranges_and_answers_no_pings():
    limited = replace(DUAL[0], source_ranges=("198.51.100.0/24",))
    planned = plan_service(service("web", limited), [], OWN)
    check = checks(planned)[VIP]
    assert [bool(each.allowed_sources) for each in planned if each.key.port == PORT.port] == [
        False,
        False,
        True,
    ]
    assert check.allowed_sources == ()
    assert not check.answers_pings


def test_without_an_address_of_the_family_there_is_none():
    own = Node(NODE, addresses=(address("192.0.2.1"),))
    assert set(checks(plan_service(service("web", *DUAL), [], own))) == {VIP}


def test_the_keys_of_a_service_include_it():
    dual = service("web", *DUAL)
    assert frontend_keys(dual) == {each.key for each in plan_service(dual, [], OWN)}


def test_a_port_of_the_service_with_that_number_comes_first():
    same = replace(DUAL[0], port=HEALTH)
    assert not checks(plan_service(service("web", same), [], OWN))


def test_a_port_of_another_service_at_the_address_may_come_first():
    port = replace(DUAL[0], cluster_ip=address("10.96.0.11"), port=443, node_port=0)
    port = replace(port, external_ips=())
    other = service_port("10.96.0.12", load_balancer_ips=(address(VIP),), port=HEALTH)
    older = replace(service("other", other), created="2024-01-01T00:00:00Z")
    checked = replace(service("web", port), created="2024-01-01T00:00:01Z")
    changes = known(OWN, older, checked)
    assert not checks(changes.plan(checked.name))
    key = FrontendKey(address(VIP), HEALTH, Protocol.TCP)
    assert changes.conflicts() == (Conflict(key, older.name, checked.name),)


# Without effect


INSIDE = service_port()
LINES = {
    "vip-unserved": "the annotation ebpflb.io/vip-unserved has no effect: the Service has no "
    "load-balancer IP and no external IP",
    "no-local-endpoint": "the annotation ebpflb.io/no-local-endpoint has no effect: the Service "
    "has no externalTrafficPolicy Local",
}


@pytest.mark.parametrize(
    ("port", "annotated", "lines"),
    [
        (INSIDE, {"vip_unserved": Unserved.DROP}, ("vip-unserved",)),
        (PORT, {"vip_unserved": Unserved.DROP}, ()),
        (PORT, {"no_local_endpoint": NoLocalEndpoint.PASS}, ("no-local-endpoint",)),
        (LOCAL_PORT, {"no_local_endpoint": NoLocalEndpoint.PASS}, ()),
        (INSIDE, {}, ()),
    ],
)
def test_what_cannot_have_an_effect_is_a_problem(port, annotated, lines):
    changes = known(node(), service("web", port, **annotated))
    assert [each.text for each in changes.problems()] == [LINES[each] for each in lines]

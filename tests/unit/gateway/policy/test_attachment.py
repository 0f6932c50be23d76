# SPDX-License-Identifier: Apache-2.0
"""Which routes are attached to which listeners."""

import pytest

from tests.unit.gateway.world import (
    backend,
    endpoint_slice,
    gateway,
    gateway_class,
    item,
    listener,
    of_listener,
    own,
    parent,
    planned,
    route,
    service,
    status,
)

ACCEPTED = ("True", "Accepted")
NOT_ALLOWED = ("False", "NotAllowedByListeners")


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ({}, [1, 1, 0]),
        ({"sectionName": "tcp80"}, [1, 0, 0]),
        ({"port": 81}, [0, 1, 0]),
        ({"sectionName": "tcp81", "port": 81}, [0, 1, 0]),
    ],
)
def test_a_reference_means_all_listeners_or_those_that_it_names(where, counts):
    asked = gateway(listener(80), listener(81), listener(80, "UDP"))
    made = planned(asked, route(backend(), **where), service())
    assert [each["attachedRoutes"] for each in status(made)["listeners"]] == counts
    assert parent(made)["Accepted"] == ACCEPTED


@pytest.mark.parametrize("where", [{"sectionName": "tcp82"}, {"port": 82}])
def test_a_reference_to_no_listener_is_told(where):
    made = planned(gateway(), route(backend(), **where), service())
    assert parent(made)["Accepted"] == ("False", "NoMatchingParent")


def test_a_listener_has_routes_of_its_own_protocol_alone():
    for protocol in ("UDP", "HTTP"):
        asked = gateway(listener(80, protocol))
        assert parent(planned(asked, route(), service()))["Accepted"] == NOT_ALLOWED
    made = planned(gateway(listener(53, "UDP")), route(protocol="UDP"))
    assert parent(made, "UDPRoute")["Accepted"] == ACCEPTED


@pytest.mark.parametrize(
    ("kinds", "supported", "resolved", "accepted"),
    [
        ([{"kind": "TCPRoute"}], ["TCPRoute"], ("True", "ResolvedRefs"), ACCEPTED),
        ([{"kind": "HTTPRoute"}], [], ("False", "InvalidRouteKinds"), NOT_ALLOWED),
        ([{"kind": "TCPRoute", "group": "other"}], [], ("False", "InvalidRouteKinds"), NOT_ALLOWED),
        (
            [{"kind": "HTTPRoute"}, {"kind": "TCPRoute"}],
            ["TCPRoute"],
            ("False", "InvalidRouteKinds"),
            ACCEPTED,
        ),
    ],
)
def test_a_listener_may_allow_kinds(kinds, supported, resolved, accepted):
    made = planned(gateway(listener(allowedRoutes={"kinds": kinds})), route())
    told = of_listener(made)
    assert [each["kind"] for each in told["supportedKinds"]] == supported
    found = {each["type"]: (each["status"], each["reason"]) for each in told["conditions"]}
    assert found["ResolvedRefs"] == resolved
    assert parent(made)["Accepted"] == accepted


LABELS = {"team": "a", "tier": "front"}


@pytest.mark.parametrize(
    ("namespaces", "is_allowed"),
    [
        (None, False),
        ({"from": "Same"}, False),
        ({"from": "None"}, False),
        ({"from": "All"}, True),
        ({"from": "Selector"}, False),
        ({"from": "Selector", "selector": {}}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}, True),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "b"}}}, False),
        *[
            (
                {"from": "Selector", "selector": {"matchExpressions": [expression]}},
                is_allowed,
            )
            for expression, is_allowed in [
                ({"key": "team", "operator": "In", "values": ["a", "b"]}, True),
                ({"key": "team", "operator": "In", "values": ["b"]}, False),
                ({"key": "none", "operator": "In", "values": ["b"]}, False),
                ({"key": "team", "operator": "NotIn", "values": ["a"]}, False),
                ({"key": "none", "operator": "NotIn", "values": ["a"]}, True),
                ({"key": "team", "operator": "Exists"}, True),
                ({"key": "team", "operator": "DoesNotExist"}, False),
                ({"key": "team", "operator": "Like"}, False),
            ]
        ],
    ],
)
def test_a_listener_says_which_namespaces_may_attach(namespaces, is_allowed):
    asked = gateway(listener(allowedRoutes={"namespaces": namespaces} if namespaces else {}))
    space = item("Namespace", "other", "", metadata={"labels": LABELS})
    foreign = route(namespace="other")
    foreign["spec"]["parentRefs"][0]["namespace"] = "shop"
    made = planned(asked, space, foreign)
    assert parent(made)["Accepted"] == (ACCEPTED if is_allowed else NOT_ALLOWED)
    assert of_listener(made)["attachedRoutes"] == is_allowed


def test_the_labels_of_an_unknown_namespace_match_nothing():
    selector = {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}
    foreign = route(namespace="other")
    foreign["spec"]["parentRefs"][0]["namespace"] = "shop"
    made = planned(gateway(listener(allowedRoutes={"namespaces": selector})), foreign)
    assert parent(made)["Accepted"] == NOT_ALLOWED


def test_of_several_routes_the_oldest_is_served_and_all_are_attached():
    asked = gateway(listener(80))
    objects = [
        route(backend("new"), name="a", created=2),
        route(backend("old"), name="b", created=1),
        route(backend("same"), name="c", created=1),
        *(service(each) for each in ("new", "old", "same")),
        *(
            endpoint_slice(address, service=each)
            for each, address in {"new": "10.0.0.1", "old": "10.0.0.2", "same": "10.0.0.3"}.items()
        ),
    ]
    made = planned(asked, *objects)
    assert of_listener(made)["attachedRoutes"] == 3
    assert {parent(made, name=each)["Accepted"] for each in "abc"} == {ACCEPTED}
    (piece,) = made.wanted.slices.values()
    assert piece["endpoints"][0]["addresses"] == ["10.0.0.2"]
    assert piece["metadata"]["labels"]["kubernetes.io/service-name"] == "gw-ebpflb"


def test_what_is_not_ours_is_left_alone():
    others = [
        gateway_class("other", "example.com/other"),
        gateway(name="theirs") | {"spec": {"gatewayClassName": "other", "listeners": [listener()]}},
    ]
    unknown = route(backend(), name="unknown")
    unknown["spec"]["parentRefs"] = [
        {"name": "theirs"},
        {"name": "missing"},
        {"name": "gw", "kind": "Service", "group": ""},
    ]
    no_parent = route(name="alone")
    no_parent["spec"] = {}
    made = planned(gateway(), *others, unknown, no_parent, service())
    told = {(each.kind, each.item.metadata.name) for each in made.statuses}
    assert told == {("GatewayClass", "ebpflb"), ("Gateway", "gw")}
    assert set(made.wanted.services) == {("shop", "gw-ebpflb")}


def test_a_route_attached_twice_counts_once():
    twice = route(backend())
    twice["spec"]["parentRefs"] = [
        {"name": "gw", "sectionName": "tcp80"},
        {"name": "gw", "port": 80},
    ]
    made = planned(gateway(), twice, service())
    assert of_listener(made)["attachedRoutes"] == 1
    assert len(status(made, "TCPRoute", "route")["parents"]) == 2
    assert own(made)["spec"]["ports"] == [{"name": "tcp-80", "protocol": "TCP", "port": 80}]

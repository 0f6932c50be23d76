# SPDX-License-Identifier: Apache-2.0
"""The backends of a route: which can be had, and how much each gets."""

import pytest

from tests.unit.gateway.world import (
    backend,
    conditions,
    copies,
    endpoint_slice,
    gateway,
    grant,
    item,
    listener,
    own,
    parent,
    planned,
    route,
    service,
    status,
    weights,
)

RESOLVED = ("True", "ResolvedRefs")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (backend("missing"), "BackendNotFound"),
        (backend(port=81), "BackendNotFound"),
        ({"name": "web"}, "BackendNotFound"),
        (backend("dns", 53), "BackendNotFound"),
        (backend("outside"), "BackendNotFound"),
        (backend(kind="Pod"), "InvalidKind"),
        (backend(group="example.com"), "InvalidKind"),
        (backend("web", namespace="other"), "RefNotPermitted"),
    ],
)
def test_a_backend_that_cannot_be_had_is_told_and_the_others_are_served(wrong, reason):
    objects = [
        *(gateway(), service(), service("dns", "UDP", 53), endpoint_slice("10.0.0.1")),
        service("outside", type="ExternalName"),
        service(namespace="other"),
    ]
    made = planned(*objects, route(wrong))
    assert parent(made) == {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("False", reason)}
    assert not made.wanted.slices
    made = planned(*objects, route(backend(), wrong))
    assert parent(made)["ResolvedRefs"] == ("False", reason)
    assert list(copies(made)) == ["10.0.0.1"]


def test_all_that_is_wrong_is_told_and_the_first_reason():
    wrong = (backend("a"), backend("b", kind="Pod"), backend("a"))
    made = planned(gateway(), route(*wrong))
    (one,) = status(made, "TCPRoute", "route")["parents"]
    (found,) = [each for each in one["conditions"] if each["type"] == "ResolvedRefs"]
    assert found["reason"] == "BackendNotFound"
    assert found["message"].count("shop/a") == 1
    assert "only Services can be backends" in found["message"]


def test_a_route_without_rules_has_no_backends():
    empty = route()
    empty["spec"]["rules"] = None
    assert parent(planned(gateway(), empty))["ResolvedRefs"] == RESOLVED
    made = planned(gateway(), route(), service())
    assert parent(made)["ResolvedRefs"] == RESOLVED
    assert not made.wanted.slices


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize(
    ("permission", "is_granted"),
    [
        ({}, True),
        ({"name": "web"}, True),
        ({"name": "other"}, False),
        ({"kind": "HTTPRoute"}, False),
        ({"source": "elsewhere"}, False),
        ({"namespace": "elsewhere"}, False),
    ],
)
def test_another_namespace_must_permit_it(protocol, permission, is_granted):
    given = {"kind": f"{protocol}Route", "source": "shop", "namespace": "other", **permission}
    made = planned(
        gateway(listener(80, protocol)),
        route(backend(namespace="other"), protocol=protocol),
        service(protocol=protocol, namespace="other"),
        endpoint_slice("10.0.0.1", protocol=protocol, namespace="other"),
        grant(**given),
    )
    resolved = RESOLVED if is_granted else ("False", "RefNotPermitted")
    assert parent(made, f"{protocol}Route")["ResolvedRefs"] == resolved
    assert bool(made.wanted.slices) is is_granted
    assert {namespace for namespace, _ in made.wanted.slices} <= {"shop"}


def test_a_grant_must_name_services():
    given = grant("TCPRoute", "shop", "other")
    given["spec"]["to"] = [{"group": "", "kind": "Secret"}]
    objects = [route(backend(namespace="other")), service(namespace="other"), given]
    assert parent(planned(gateway(), *objects))["ResolvedRefs"] == ("False", "RefNotPermitted")


def test_the_service_of_a_gateway_is_no_backend():
    objects = [gateway(), route(backend("gw-ebpflb", 80))]
    made = planned(*objects, own(planned(*objects)))
    assert parent(made)["ResolvedRefs"] == ("False", "BackendNotFound")


def test_backends_have_their_shares_whatever_their_size():
    made = planned(
        gateway(),
        route(backend(weight=3), backend("canary", weight=1)),
        *(service(), service("canary")),
        endpoint_slice("10.0.0.1", "10.0.0.2"),
        endpoint_slice("10.0.0.3", service="canary"),
        endpoint_slice("fd00::1"),
        endpoint_slice("fd00::2", "fd00::3", service="canary"),
    )
    assert weights(made) == {
        "10.0.0.1,10.0.0.2": "3",
        "10.0.0.3": "2",
        "fd00::1": "6",
        "fd00::2,fd00::3": "1",
    }


def test_a_backend_named_twice_has_the_sum():
    made = planned(
        gateway(),
        route(backend(weight=1), backend("canary", weight=1), backend(weight=2)),
        *(service(), service("canary")),
        endpoint_slice("10.0.0.1"),
        endpoint_slice("10.0.0.2", service="canary"),
    )
    assert weights(made) == {"10.0.0.1": "3", "10.0.0.2": "1"}


def test_even_endpoints_have_no_weights():
    objects = [gateway(), service(), service("canary")]
    made = planned(*objects, route(backend()), endpoint_slice("10.0.0.1"))
    assert weights(made) == {"10.0.0.1": None}
    made = planned(
        *(*objects, route(backend(weight=2), backend("canary", weight=1))),
        endpoint_slice("10.0.0.1", "10.0.0.2"),
        endpoint_slice("10.0.0.3", service="canary"),
    )
    assert set(weights(made).values()) == {None}


def test_weight_0_keeps_endpoints_while_others_take_new_connections():
    objects = [
        *(gateway(), service(), service("gone")),
        route(backend(), backend("gone", weight=0)),
        endpoint_slice("10.0.0.2", service="gone"),
    ]
    made = planned(*objects, endpoint_slice("10.0.0.1"))
    assert weights(made) == {"10.0.0.1": "1", "10.0.0.2": "0"}
    made = planned(*objects, endpoint_slice("10.0.0.1", ready=False))
    assert weights(made) == {"10.0.0.1": None}
    assert not planned(*objects).wanted.slices


def test_ready_endpoints_alone_share_the_weight():
    half = endpoint_slice("10.0.0.1", "10.0.0.2")
    half["endpoints"][1]["conditions"]["ready"] = False
    half["endpoints"][0]["conditions"] = None
    made = planned(
        *(gateway(), service(), service("canary"), half),
        route(backend(weight=3), backend("canary", weight=1)),
        endpoint_slice("10.0.0.3", service="canary"),
    )
    assert weights(made) == {"10.0.0.1,10.0.0.2": "3", "10.0.0.3": "1"}


def test_a_copy_has_what_is_needed_and_nothing_that_was_for_the_other_service():
    given = endpoint_slice("10.0.0.1")
    given["endpoints"][0] |= {
        "hints": {"forZones": [{"name": "a"}]},
        "hostname": "a",
        "zone": "a",
        "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-1"},
    }
    given["ports"].append({"name": "metrics", "protocol": "TCP", "port": 9100})
    (copy,) = planned(gateway(), service(), route(backend()), given).wanted.slices.values()
    assert copy["ports"] == [{"name": "tcp-80", "protocol": "TCP", "port": 9000}]
    assert copy["addressType"] == "IPv4"
    assert copy["endpoints"] == [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": True},
            "nodeName": "node1",
            "zone": "a",
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-1"},
        }
    ]
    (owner,) = copy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (
        "Gateway",
        "gateway-shop-gw",
        True,
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"addressType": "FQDN"},
        {"ports": None},
        {"ports": [{"name": "main", "protocol": "TCP"}]},
        {"ports": [{"name": "other", "protocol": "TCP", "port": 1}]},
        {"ports": [{"name": "main", "protocol": "UDP", "port": 1}]},
        {
            "metadata": {
                "name": "a",
                "labels": {"endpointslice.kubernetes.io/managed-by": "gateway.ebpflb.io"},
            }
        },
    ],
)
def test_slices_without_the_port_and_copies_are_passed_over(odd):
    given = endpoint_slice("10.0.0.1") | odd
    assert not planned(gateway(), service(), route(backend()), given).wanted.slices


def test_a_port_without_a_name_is_found():
    nameless = service()
    nameless["spec"]["ports"] = [{"port": 8080}]
    given = endpoint_slice("10.0.0.1", endpoints=None) | {"ports": [{"port": 9000}]}
    (copy,) = planned(gateway(), nameless, route(backend()), given).wanted.slices.values()
    assert copy["endpoints"] == []
    assert copy["ports"] == [{"name": "tcp-80", "protocol": "TCP", "port": 9000}]


def test_each_listener_has_copies_of_its_own():
    made = planned(
        gateway(listener(80), listener(81), listener(53, "UDP")),
        route(backend()),
        route(backend("dns", 53), name="dns", protocol="UDP"),
        *(service(), service("dns", "UDP", 53)),
        endpoint_slice("10.0.0.1"),
        endpoint_slice("10.0.0.2", service="dns", protocol="UDP"),
    )
    ports = sorted(piece["ports"][0]["name"] for piece in made.wanted.slices.values())
    assert ports == ["tcp-80", "tcp-81", "udp-53"]
    assert conditions(status(made))["Accepted"] == ("True", "Accepted")


def test_a_namespace_that_is_not_there_grants_nothing():
    foreign = item("ReferenceGrant", "g", "x", spec={"from": [], "to": []})
    made = planned(gateway(), route(backend(namespace="x")), foreign)
    assert parent(made)["ResolvedRefs"] == ("False", "RefNotPermitted")

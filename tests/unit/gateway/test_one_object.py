# SPDX-License-Identifier: Apache-2.0
"""Whatever one object holds, all others are served as without it."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert

from ebpflb.gateway.controller import GatewayController
from ebpflb.gateway.lease import Lease
from ebpflb.gateway.policy.imports import import_service_name
from ebpflb.gateway.policy.objects import ServiceImport
from tests.unit.gateway.fake_api import FakeApi
from tests.unit.gateway.world import (
    RANGES,
    Object,
    addresses,
    backend,
    endpoint_slice,
    gateway,
    gateway_class,
    grant,
    imported_slice,
    item,
    listener,
    route,
    service,
    service_import,
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.sampled_from(["", "x", "203.0.113.1", "fe80::1%eth0", "*", "a/b", "\u0000", "Same"]),
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.just([{"name": "x"}]),
)
OTHERS: list[Object] = [
    gateway_class(),
    gateway(name="good"),
    route(backend("fine"), name="good"),
    service("fine"),
    endpoint_slice("10.0.0.1", service="fine"),
    service_import("good"),
    imported_slice("10.0.0.3", name="good"),
]
GOOD = convert(OTHERS[5], ServiceImport)
OTHERS[2]["spec"]["parentRefs"] = [{"name": "good"}]
ODD: list[Object] = [
    gateway(
        listener(80, allowedRoutes={"namespaces": {"from": "Selector", "selector": {}}}),
        addresses=addresses("203.0.113.1"),
        infrastructure={"annotations": {"a": "b"}},
        created=2,
    ),
    {**route(backend(weight=2), backend("dns", 53, namespace="other")), "status": {"parents": []}},
    service(externalIPs=["203.0.113.9"]),
    endpoint_slice("10.0.0.2"),
    grant("TCPRoute", "shop", "other"),
    gateway_class("second"),
    item("Namespace", "shop", "", metadata={"labels": {"a": "b"}}),
    service_import(
        ipFamilies=["IPv6"],
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}},
        trafficDistribution="PreferSameNode",
        ips=["10.96.0.9"],
    ),
    imported_slice("10.0.0.1", "fd00::1"),
    item("Node", "node1", "", status={"addresses": [{"address": "203.0.113.1"}]}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in an object something can be put, apart from its name."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner if isinstance(value, dict | list) else ():
        here = (*path, key)
        if here not in [("kind",), ("service",), ("metadata",), ("metadata", "name")]:
            yield here
        if isinstance(each, dict | list):
            yield from places(each, here)


def with_value(document: Object, path: tuple[Any, ...], value: Any) -> Object:
    made = deepcopy(document)
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


def served(*objects: Object) -> Any:
    """What is made for the Gateway and the ServiceImport that are as they should be."""
    api = FakeApi()
    for each in objects:
        api.set(each)
    GatewayController(api, api.store, Lease(api, "own", "lease", "me"), RANGES).reconcile()
    names = ("good-ebpflb", import_service_name(GOOD)[1])
    return [
        (
            api.at("Service", name)["spec"],
            [each["endpoints"] for path, each in api.objects.items() if f"slices/{name}-" in path],
        )
        for name in names
    ]


WANTED = served(*OTHERS)


@settings(max_examples=300)
@given(choices=st.data())
def test_whatever_an_object_holds_the_others_are_served(choices):
    odd = choices.draw(st.sampled_from(ODD))
    path = choices.draw(st.sampled_from(list(places(odd))))
    mutated = with_value(odd, path, choices.draw(VALUES))
    if path == ("metadata", "namespace"):
        mutated["metadata"]["namespace"] = "elsewhere"
    rest = [each for each in ODD if each is not odd]
    assert served(*OTHERS, *rest, mutated) == WANTED

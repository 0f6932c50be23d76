# SPDX-License-Identifier: Apache-2.0
"""The health check result for a Service's endpoints on this node."""

import pytest

from ebpflb.model.address import Family, Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import SlicePort
from ebpflb.model.health_check import health_check
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.service import ServiceName
from tests.builders import (
    NODE,
    OTHER_NODE,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
    terminating,
)

PORT = 32000
WEB = service("web", service_port(health_check_node_port=PORT))
ON_6 = {"family": Family.IPV6}


def checked(of, *pieces):
    found = health_check(of, pieces, node())
    assert found
    return found


def counted(*endpoints):
    return checked(WEB, endpoint_slice("web-1", *endpoints)).local_ready


def test_a_service_without_the_port_has_none():
    assert health_check(service(), [endpoint_slice("web-1", endpoint())], node()) is None
    assert health_check(service("web"), [], node()) is None


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        pytest.param([], 0, id="no endpoint at all"),
        pytest.param([endpoint()], 1, id="one here"),
        pytest.param([endpoint(), endpoint("10.1.0.2")], 2, id="two here"),
        pytest.param([endpoint(node=OTHER_NODE)], 0, id="elsewhere"),
        pytest.param([endpoint(node=None)], 0, id="nowhere in particular"),
        pytest.param([terminating()], 0, id="it only serves while it terminates"),
        pytest.param([endpoint(ready=False)], 0, id="not ready"),
        pytest.param([endpoint(terminating=True)], 1, id="ready although it terminates"),
        pytest.param([terminating(), endpoint()], 1, id="a pod has taken over the address"),
    ],
)
def test_ready_endpoints_of_this_node_are_counted(endpoints, expected):
    assert counted(*endpoints) == {Family.IPV4: expected}


def test_an_address_counts_once_for_all_ports_and_slices():
    names = [port_name("a"), port_name("b", Protocol.UDP)]
    ports = [service_port(name=name, health_check_node_port=PORT) for name in names]
    pieces = [
        endpoint_slice("1", endpoint(), ports=(SlicePort("a", Protocol.TCP, 8080),)),
        endpoint_slice(
            "2", endpoint(), endpoint("10.1.0.2"), ports=(SlicePort("b", Protocol.UDP, 53),)
        ),
    ]
    found = checked(service("web", *ports), *pieces)
    assert found.port == PORT
    assert found.local_ready == {Family.IPV4: 2}


def test_each_family_of_the_service_is_counted_for_itself():
    both = service(
        "web",
        service_port(health_check_node_port=PORT),
        service_port("fd00::10", health_check_node_port=PORT),
    )
    six = endpoint_slice("web-6", endpoint("fd00::1"), endpoint("fd00::2"), **ON_6)
    assert checked(both, six).local_ready == {Family.IPV4: 0, Family.IPV6: 2}
    assert checked(WEB, six).local_ready == {Family.IPV4: 0}


def test_the_order_of_slices_does_not_matter():
    first, second = endpoint_slice("1", endpoint()), endpoint_slice("2", endpoint(ready=False))
    assert checked(WEB, first, second) == checked(WEB, second, first)


def test_changes_know_the_slices_and_the_node():
    name, changes = ServiceName("default", "web"), Changes(NODE)
    assert changes.health_check(name) is None
    changes.set(WEB)
    assert changes.health_check(name) == (PORT, {Family.IPV4: 0})
    piece = endpoint_slice("web-1", endpoint())
    changes.set(piece)
    assert changes.health_check(name) == (PORT, {Family.IPV4: 1})
    changes.remove(key_of(piece))
    assert changes.health_check(name) == (PORT, {Family.IPV4: 0})

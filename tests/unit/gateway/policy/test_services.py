# SPDX-License-Identifier: Apache-2.0
"""The Service of a Gateway."""

import pytest

from tests.unit.gateway.world import (
    conditions,
    gateway,
    gateway_class,
    item,
    listener,
    own,
    planned,
    service,
    status,
)


def test_it_has_the_listeners_as_ports_and_belongs_to_the_gateway():
    made = planned(gateway(listener(80), listener(53, "UDP"), listener(443, "HTTPS")))
    wanted = made.wanted.services["shop", "gw-ebpflb"]
    assert "selector" not in wanted["spec"]
    assert wanted["spec"]["ports"] == [
        {"name": "tcp-80", "protocol": "TCP", "port": 80},
        {"name": "udp-53", "protocol": "UDP", "port": 53},
    ]
    assert wanted["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "gateway.ebpflb.io",
        "gateway.networking.k8s.io/gateway-name": "gw",
    }
    (owner,) = wanted["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["name"], owner["controller"]) == ("gateway-shop-gw", "gw", True)
    assert "blockOwnerDeletion" not in owner


@pytest.mark.parametrize("name", ["a" * 63, "1st", "a.b"])
def test_a_gateway_whose_name_no_service_can_have_has_another_one(name):
    made = planned(gateway(name=name))
    ((_, found),) = made.wanted.services
    assert found.startswith("gateway-")
    assert len(found) < 64
    ((_, other),) = planned(gateway(name=f"{name}x")).wanted.services
    assert other != found


def test_a_long_name_is_cut_in_the_label():
    made = planned(gateway(name="a" * 62 + "-" + "b"))
    (wanted,) = made.wanted.services.values()
    assert wanted["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"] == "a" * 62


def test_annotations_of_the_infrastructure_go_to_it():
    asked = {"ebpflb.io/scheduler": "maglev", "a": "b"}
    made = planned(gateway(infrastructure={"annotations": asked}))
    (wanted,) = made.wanted.services.values()
    names = {"gateway.ebpflb.io/annotations": "a ebpflb.io/scheduler"}
    assert wanted["metadata"]["annotations"] == asked | names
    (wanted,) = planned(gateway(infrastructure={})).wanted.services.values()
    assert wanted["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    "head",
    [
        {},
        {
            "ownerReferences": [{"uid": "another"}],
            "labels": {"app.kubernetes.io/managed-by": "gateway.ebpflb.io"},
        },
        {"ownerReferences": [{"uid": "gateway-shop-gw"}]},
    ],
)
def test_the_service_of_somebody_else_is_not_touched(head):
    theirs = service("gw-ebpflb")
    theirs["metadata"] |= head
    made = planned(gateway(), theirs)
    assert not made.wanted.services
    assert conditions(status(made))["Programmed"] == ("False", "Invalid")


def test_parameters_that_nobody_knows_are_told():
    parameters = {"group": "a", "kind": "b", "name": "c"}
    made = planned(gateway(infrastructure={"parametersRef": parameters}))
    assert conditions(status(made))["Accepted"] == ("False", "InvalidParameters")
    assert not made.wanted.services
    made = planned(gateway(), gateway_class(parametersRef=parameters))
    found = conditions(status(made, "GatewayClass", "ebpflb"))
    assert found == {"Accepted": ("False", "InvalidParameters")}
    assert not made.wanted.services
    assert [each.kind for each in made.statuses] == ["GatewayClass"]


def test_a_gateway_without_a_listener_that_can_be_served_has_none():
    made = planned(gateway(listener(80, "HTTP")))
    assert conditions(status(made))["Accepted"] == ("False", "ListenersNotValid")
    assert not made.wanted.services
    assert item("Node", "a")["kind"] == "Node"


def test_an_address_stays_shown_only_while_it_is_served():
    first = planned(gateway())
    given = own(first, "203.0.113.7")
    broken = gateway(infrastructure={"parametersRef": {"name": "a"}})
    assert status(planned(broken, given))["addresses"] == []

# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports of Gateways: nobody takes what somebody else has."""

import pytest

from tests.unit.gateway.world import (
    addresses,
    conditions,
    gateway,
    item,
    listener,
    of_listener,
    own,
    planned,
    service,
    status,
)

PROGRAMMED = ("True", "Programmed")
STATIC = ["203.0.113.1", "2001:db8::1"]


def told(made, name="gw"):
    found = conditions(status(made, name=name))
    return found["Accepted"], found["Programmed"]


def spec(made, name="gw", namespace="shop"):
    return made.wanted.services[namespace, f"{name}-ebpflb"]["spec"]


def port_state(made, number=0, name="gw"):
    return conditions(of_listener(made, number, name))["Accepted"]


def holder(*ips, name="other", namespace="shop", created="2024", **more):
    """A Service with external IPs and port 80, older than all Gateways."""
    return {
        **service(name, port=80, namespace=namespace, externalIPs=list(ips), **more),
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "creationTimestamp": f"{created}-01-01T00:00:00Z",
        },
    }


def test_a_load_balancer_gives_the_address():
    first = planned(gateway())
    assert spec(first)["type"] == "LoadBalancer"
    assert spec(first)["externalIPs"] == []
    assert told(first) == (("True", "Accepted"), ("False", "Pending"))
    waiting = planned(gateway(), own(first))
    assert told(waiting)[1] == ("False", "AddressNotAssigned")
    assert conditions(of_listener(waiting))["Programmed"] == ("False", "Pending")
    made = planned(gateway(), own(first, *STATIC))
    assert told(made)[1] == PROGRAMMED
    assert conditions(of_listener(made))["Programmed"] == PROGRAMMED
    shown = [{"type": "IPAddress", "value": each} for each in STATIC]
    assert status(made)["addresses"] == shown


def test_a_host_name_is_an_address_too():
    given = own(planned(gateway()))
    given["status"]["loadBalancer"]["ingress"] = [{"hostname": "lb.example.com"}]
    made = planned(gateway(), given)
    assert told(made)[1] == PROGRAMMED
    assert status(made)["addresses"] == [{"type": "Hostname", "value": "lb.example.com"}]


def test_addresses_of_the_ranges_are_external_ips():
    asked = gateway(addresses=addresses(*STATIC))
    first = planned(asked)
    assert spec(first)["type"] == "ClusterIP"
    assert spec(first)["externalIPs"] == STATIC
    assert spec(first)["loadBalancerIP"] == ""
    made = planned(asked, own(first))
    assert told(made)[1] == PROGRAMMED
    assert [each["value"] for each in status(made)["addresses"]] == STATIC


def test_another_address_is_asked_of_the_load_balancer():
    asked = gateway(addresses=addresses("198.51.100.1"))
    first = planned(asked)
    assert (spec(first)["type"], spec(first)["loadBalancerIP"]) == ("LoadBalancer", "198.51.100.1")
    refused = planned(asked, own(first, "198.51.100.9"))
    assert told(refused)[1] == ("False", "AddressNotUsable")
    assert told(planned(asked, own(first, "198.51.100.1")))[1] == PROGRAMMED


def test_without_ranges_every_address_is_the_load_balancers():
    made = planned(gateway(addresses=addresses(STATIC[0])), ranges=())
    assert spec(made)["loadBalancerIP"] == STATIC[0]


def test_an_address_without_a_value_is_any():
    made = planned(gateway(addresses=[{"type": "IPAddress"}]))
    assert spec(made)["type"] == "LoadBalancer"


@pytest.mark.parametrize(
    ("asked", "accepted", "programmed"),
    [
        (
            [{"type": "Hostname", "value": "a.example.com"}],
            ("False", "UnsupportedAddress"),
            ("False", "Invalid"),
        ),
        (addresses("203.0.113"), ("False", "UnsupportedAddress"), ("False", "Invalid")),
        (
            addresses(STATIC[0], "198.51.100.1"),
            ("True", "Accepted"),
            ("False", "AddressNotUsable"),
        ),
    ],
)
def test_addresses_that_cannot_be_had_are_told(asked, accepted, programmed):
    made = planned(gateway(addresses=asked))
    assert told(made) == (accepted, programmed)
    assert not made.wanted.services


def test_an_address_is_of_one_namespace():
    mine = gateway(listener(80), name="old", addresses=addresses(*STATIC), created=1)
    foreign = gateway(listener(81), namespace="other", addresses=addresses(STATIC[1]), created=2)
    made = planned(foreign, mine)
    assert told(made)[1] == ("False", "AddressNotUsable")
    assert list(made.wanted.services) == [("shop", "old-ebpflb")]


def test_an_address_of_a_load_balancer_is_of_one_namespace_too():
    wish = addresses("198.51.100.1")
    foreign = gateway(namespace="other", addresses=wish, created=2)
    made = planned(foreign, gateway(name="old", addresses=wish))
    assert told(made)[1] == ("False", "AddressNotUsable")
    assert list(made.wanted.services) == [("shop", "old-ebpflb")]
    made = planned(gateway(addresses=wish), holder("198.51.100.1", namespace="other"))
    assert told(made)[1] == ("False", "AddressNotUsable")


def test_gateways_of_one_namespace_share_an_address_and_no_port():
    old = gateway(listener(80), name="old", addresses=addresses(*STATIC), created=1)
    new = gateway(listener(80), listener(81), listener(80, "UDP"), addresses=addresses(*STATIC))
    new["metadata"]["creationTimestamp"] = "2025-01-01T00:00:02Z"
    made = planned(new, old)
    assert [port_state(made, number)[1] for number in range(3)] == [
        *("PortUnavailable", "Accepted", "Accepted")
    ]
    assert [each["name"] for each in spec(made)["ports"]] == ["tcp-81", "udp-80"]
    assert told(made)[0] == ("True", "ListenersNotValid")
    assert port_state(made, name="old") == ("True", "Accepted")
    assert conditions(of_listener(made))["Programmed"] == ("False", "Invalid")


def test_without_a_port_there_is_no_service():
    old = gateway(listener(80), name="old", addresses=addresses(STATIC[0]), created=1)
    new = gateway(listener(80), addresses=addresses(STATIC[0]), created=2)
    made = planned(old, new)
    assert told(made) == (("False", "ListenersNotValid"), ("False", "Invalid"))
    assert list(made.wanted.services) == [("shop", "old-ebpflb")]


def test_an_older_service_keeps_its_address():
    asked = gateway(listener(80), listener(81), addresses=addresses(*STATIC))
    made = planned(asked, holder(STATIC[1], namespace="other"))
    assert told(made)[1] == ("False", "AddressNotUsable")
    made = planned(asked, holder(STATIC[1]))
    assert [port_state(made, number)[1] for number in range(2)] == ["PortUnavailable", "Accepted"]
    portless = holder(STATIC[1])
    portless["spec"]["ports"] = None
    assert port_state(planned(asked, portless))[1] == "Accepted"


@pytest.mark.parametrize("written", ["2001:DB8:0::1", "203.0.113.01"])
def test_however_the_older_service_writes_it(written):
    asked = gateway(addresses=addresses(*STATIC))
    made = planned(asked, holder(written, "no address", namespace="other"))
    assert told(made)[1] == ("False", "AddressNotUsable")


def test_a_younger_service_takes_nothing():
    asked = gateway(addresses=addresses(*STATIC))
    for namespace in ("shop", "other"):
        made = planned(asked, holder(*STATIC, namespace=namespace, created="2026"))
        assert port_state(made)[1] == "Accepted"
        assert made.wanted.services


def test_its_own_service_is_no_obstacle():
    asked = gateway(addresses=addresses(*STATIC))
    first = planned(asked)
    made = planned(asked, own(first, creationTimestamp="2024-01-01T00:00:00Z"))
    assert port_state(made)[1] == "Accepted"
    assert told(made)[1] == PROGRAMMED


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_a_node_port_is_taken_at_the_addresses_of_nodes(protocol):
    node = item("Node", "node1", "", status={"addresses": [{"address": STATIC[0]}]})
    bare = item("Node", "node2", "")
    ports = [{"name": "main", "protocol": protocol, "port": 8080, "nodePort": 30000}]
    other = service(ports=ports)
    asked = gateway(listener(30000), listener(80), addresses=addresses(STATIC[0]))
    made = planned(asked, node, bare, other)
    taken = "PortUnavailable" if protocol == "TCP" else "Accepted"
    assert [port_state(made, number)[1] for number in range(2)] == [taken, "Accepted"]
    elsewhere = gateway(listener(30000), addresses=addresses(STATIC[1]))
    assert port_state(planned(elsewhere, node, other))[1] == "Accepted"


def test_at_an_address_of_a_load_balancer_a_taken_port_is_told_and_stays():
    first = planned(gateway(name="old"), gateway(created=2))
    objects = [own(first, STATIC[0], name="old"), own(first, STATIC[0])]
    made = planned(gateway(name="old"), gateway(created=2), *objects)
    assert port_state(made)[1] == "PortUnavailable"
    assert told(made) == (("False", "ListenersNotValid"), ("False", "Invalid"))
    assert spec(made)["ports"]
    both = gateway(listener(80), listener(81), created=2)
    first = planned(gateway(name="old"), both)
    objects = [own(first, STATIC[0], name="old"), own(first, STATIC[0])]
    made = planned(gateway(name="old"), both, *objects)
    assert [each["name"] for each in spec(made)["ports"]] == ["tcp-80", "tcp-81"]
    assert [port_state(made, number)[1] for number in range(2)] == ["PortUnavailable", "Accepted"]

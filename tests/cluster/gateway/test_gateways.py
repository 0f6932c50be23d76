# SPDX-License-Identifier: Apache-2.0
"""Gateways at a real API server: what the controller makes of them, and what an agent serves."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.address import format_address
from ebpflb.model.service import ServiceName
from tests.cluster.gateway import gateway_api
from tests.cluster.harness.agent import ClusterAgent, running_agent
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.objects import apply, one_node
from tests.e2e.harness.waiting import wait_until, wait_until_equal

Object = dict[str, Any]

ADDRESSES = ["203.0.113.80", "2001:db8:113::80"]
RANGES = ("203.0.113.0/24", "2001:db8:113::/64")
GATEWAY = {"apiVersion": "gateway.networking.k8s.io/v1"}
SHOP, INFRA, BACKUP = "shop", "infra", "backup"


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet, the definitions and the controller."""
    with one_node("gateway") as made:
        gateway_api.install(made)
        for namespace in (SHOP, INFRA, BACKUP):
            labels = {"metadata": {"name": namespace, "labels": {"routes": namespace}}}
            apply(made, {"kind": "Namespace", "apiVersion": "v1", **labels})
        apply(
            made,
            {
                **GATEWAY,
                "kind": "GatewayClass",
                "metadata": {"name": "ebpflb"},
                "spec": {"controllerName": "ebpflb.io/ebpflb"},
            },
        )
        with gateway_api.running_controller(made, *RANGES):
            yield made


@pytest.fixture(scope="module")
def agent(control: ControlPlane) -> Iterator[ClusterAgent]:
    with running_agent(control) as made:
        made.wait_in_sync()
        yield made


def gateway(name: str, **spec: Any) -> Object:
    shop = {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"routes": SHOP}}}}
    listeners = [
        {"name": name, "port": port, "protocol": protocol, "allowedRoutes": shop}
        for name, port, protocol in (("web", 80, "TCP"), ("dns", 53, "UDP"))
    ]
    fields = {"gatewayClassName": "ebpflb", "listeners": listeners, **spec}
    metadata = {"name": name, "namespace": INFRA}
    return {**GATEWAY, "kind": "Gateway", "metadata": metadata, "spec": fields}


def route(protocol: str, gateway: str, *backends: Object) -> Object:
    spec = {
        "parentRefs": [{"name": gateway, "namespace": INFRA}],
        "rules": [{"backendRefs": list(backends)}],
    }
    metadata = {"name": f"{gateway}-{protocol.lower()}", "namespace": SHOP}
    return {**GATEWAY, "kind": f"{protocol}Route", "metadata": metadata, "spec": spec}


def service(name: str, protocol: str, namespace: str = SHOP) -> Object:
    port = {"name": "main", "port": 80, "targetPort": 8080, "protocol": protocol}
    metadata = {"name": name, "namespace": namespace}
    spec = {"ports": [port], "ipFamilyPolicy": "PreferDualStack"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def pieces(name: str, protocol: str, *numbers: int, namespace: str = SHOP) -> Iterator[Object]:
    """Endpoints 10.244.1.NUMBER and fd00:10:244:1::NUMBER."""
    for family, prefix in (("IPv4", "10.244.1."), ("IPv6", "fd00:10:244:1::")):
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-{family.lower()}",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family,
            "ports": [{"name": "main", "port": 8080, "protocol": protocol}],
            "endpoints": [
                {"addresses": [f"{prefix}{number}"], "nodeName": "node1"} for number in numbers
            ],
        }


def conditions(control: ControlPlane, kind: str, name: str, namespace: str) -> dict[str, str]:
    """Type -> reason, of a Gateway or of a route's only parent."""
    found = json.loads(control.kubectl("-n", namespace, "get", kind, name, "-o", "json"))
    status = found.get("status", {})
    entry = status if kind == "gateway" else {"conditions": []} | dict(*status.get("parents", []))
    return {each["type"]: each["reason"] for each in entry["conditions"]}


def served(agent: ClusterAgent, name: str) -> dict[str, list[str]]:
    """ADDRESS/PORT of the chosen addresses -> the backends there."""
    found = read_frontends(agent.maps(), ServiceName(INFRA, f"{name}-ebpflb"))
    return {
        f"{address}/{each.key.port}": sorted(
            format_address(backend.address) for backend in each.local.backends
        )
        for each in (one.frontend for one in found)
        if (address := format_address(each.key.address)) in ADDRESSES
    }


def test_routes_are_served_by_their_weights_and_reach_what_they_may(control, agent):
    apply(
        control,
        gateway("main", addresses=[{"value": each} for each in ADDRESSES]),
        route("TCP", "main", {"name": "web", "port": 80, "weight": 3}, {"name": "new", "port": 80}),
        route("UDP", "main", {"name": "dns", "namespace": BACKUP, "port": 80}),
        *(service("web", "TCP"), service("new", "TCP"), service("dns", "UDP", BACKUP)),
        *(*pieces("web", "TCP", 1, 2), *pieces("new", "TCP", 3)),
        *pieces("dns", "UDP", 4, namespace=BACKUP),
    )
    web = {"203.0.113.80/80": [f"10.244.1.{each}" for each in (1, 2, 3)]}
    web["2001:db8:113::80/80"] = [f"fd00:10:244:1::{each}" for each in (1, 2, 3)]
    refused: dict[str, list[str]] = {"203.0.113.80/53": [], "2001:db8:113::80/53": []}
    wait_until_equal(lambda: served(agent, "main"), web | refused)
    listed = control.kubectl("-n", INFRA, "get", "endpointslices", "-o", "json")
    weights = {
        len(each["endpoints"]): each["metadata"]["annotations"]["service.cilium.io/weight"]
        for each in json.loads(listed)["items"]
    }
    assert weights == {2: "3", 1: "2"}
    assert conditions(control, "udproute", "main-udp", SHOP)["ResolvedRefs"] == "RefNotPermitted"
    grant = {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "UDPRoute", "namespace": SHOP}],
        "to": [{"group": "", "kind": "Service"}],
    }
    metadata = {"name": "dns", "namespace": BACKUP}
    apply(control, {**GATEWAY, "kind": "ReferenceGrant", "metadata": metadata, "spec": grant})
    dns = {"203.0.113.80/53": ["10.244.1.4"], "2001:db8:113::80/53": ["fd00:10:244:1::4"]}
    wait_until_equal(lambda: served(agent, "main"), web | dns)
    programmed = {"Accepted": "Accepted", "Programmed": "Programmed"}
    wait_until_equal(lambda: conditions(control, "gateway", "main", INFRA), programmed)
    resolved = {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}
    wait_until_equal(lambda: conditions(control, "tcproute", "main-tcp", SHOP), resolved)
    wait_until_equal(lambda: conditions(control, "udproute", "main-udp", SHOP), resolved)
    control.kubectl("-n", BACKUP, "delete", "referencegrant", "dns")
    wait_until_equal(lambda: served(agent, "main"), web | refused)


def test_a_load_balancer_fills_the_address(control):
    apply(control, gateway("given"))
    wanted = {"Accepted": "Accepted", "Programmed": "AddressNotAssigned"}
    wait_until_equal(lambda: conditions(control, "gateway", "given", INFRA), wanted)
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.81"}]}}}
    control.kubectl(
        *("-n", INFRA, "patch", "service", "given-ebpflb", "--subresource=status"),
        *("--type=merge", "-p", json.dumps(status)),
    )
    wanted["Programmed"] = "Programmed"
    wait_until_equal(lambda: conditions(control, "gateway", "given", INFRA), wanted)
    before = ports(control, "given")
    more = gateway("given")
    more["spec"]["listeners"].append({"name": "tls", "port": 443, "protocol": "TCP"})
    apply(control, more)
    wait_until(lambda: "tcp-443" in ports(control, "given"), "another port")
    assert before.items() <= ports(control, "given").items()


def ports(control: ControlPlane, name: str) -> dict[str, int]:
    """The NodePorts of a Gateway's Service, which a change of other ports must leave alone."""
    listed = control.kubectl("-n", INFRA, "get", "service", f"{name}-ebpflb", "-o", "json")
    return {each["name"]: each["nodePort"] for each in json.loads(listed)["spec"]["ports"]}


def test_what_a_gateway_had_goes_with_it_and_a_users_service_stays(control):
    apply(control, service("user-ebpflb", "TCP", INFRA), gateway("user"))
    wanted = {"Accepted": "Accepted", "Programmed": "Invalid"}
    wait_until_equal(lambda: conditions(control, "gateway", "user", INFRA), wanted)
    apply(control, gateway("gone"), route("TCP", "gone", {"name": "web", "port": 80}))
    named = ("-n", INFRA, "get", "service", "-o", "name")
    wait_until(lambda: "service/gone-ebpflb" in control.kubectl(*named), "there")
    control.kubectl("-n", INFRA, "delete", "gateway", "gone", "user")
    wait_until(lambda: "service/gone-ebpflb" not in control.kubectl(*named), "gone")
    assert "service/user-ebpflb" in control.kubectl(*named)

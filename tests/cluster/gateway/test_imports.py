# SPDX-License-Identifier: Apache-2.0
"""ServiceImports at a real API server: what the controller makes of them, and what an agent serves.

The slices that another controller would import from two clusters are written by hand.
"""

import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.address import format_address
from ebpflb.model.service import ServiceName
from tests.cluster.gateway import gateway_api, mcs_api
from tests.cluster.harness.agent import ClusterAgent, running_agent
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.layout import SERVICES, SERVICES6
from tests.cluster.harness.place import Daemon
from tests.cluster.objects import apply, one_node
from tests.e2e.harness.waiting import wait_until, wait_until_equal

Object = dict[str, Any]

SHOP = "shop"
IMPORT_LABEL = "multicluster.kubernetes.io/service-name"
CLUSTERS = {"west": 1, "east": 2}


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet, and the definitions."""
    with one_node("imports") as made:
        mcs_api.install(made)
        apply(made, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": SHOP}})
        yield made


@pytest.fixture(scope="module")
def controller(control: ControlPlane) -> Iterator[Daemon]:
    """For both APIs, of which Gateway API is not installed."""
    with gateway_api.running_controller(control, apis=("gateway", "multicluster")) as made:
        yield made


@pytest.fixture(scope="module")
def agent(control: ControlPlane) -> Iterator[ClusterAgent]:
    with running_agent(control) as made:
        made.wait_in_sync()
        yield made


def service_import(name: str, **spec: Any) -> Object:
    ports = [
        {"name": "web", "port": 80, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    return {
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "metadata": {"name": name, "namespace": SHOP},
        "spec": {"type": "ClusterSetIP", "ports": ports, **spec},
    }


def pieces(name: str, cluster: str) -> Iterator[Object]:
    """10.244.N.7 and fd00:10:244:N::7, with a node's name that a node of this cluster has, too."""
    number = CLUSTERS[cluster]
    for family, address in (("IPv4", f"10.244.{number}.7"), ("IPv6", f"fd00:10:244:{number}::7")):
        labels = {IMPORT_LABEL: name, "multicluster.kubernetes.io/source-cluster": cluster}
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-{cluster}-{family.lower()}",
                "namespace": SHOP,
                "labels": labels,
            },
            "addressType": family,
            "ports": [
                {"name": "web", "port": 8080, "protocol": "TCP"},
                {"name": "dns", "port": 5353, "protocol": "UDP"},
            ],
            "endpoints": [{"addresses": [address], "nodeName": "node1", "zone": cluster}],
        }


def derived(control: ControlPlane, name: str) -> str:
    """The name of the Service of a ServiceImport; empty if there is none."""
    found = control.kubectl(
        *("-n", SHOP, "get", "services", "-l", f"{IMPORT_LABEL}={name}"),
        *("-o", "jsonpath={.items[*].metadata.name}"),
    )
    return found.strip()


def read(control: ControlPlane, name: str) -> Object:
    kind = "serviceimports.v1beta1.multicluster.x-k8s.io"
    found: Object = json.loads(control.kubectl("-n", SHOP, "get", kind, name, "-o", "json"))
    return found


def told(control: ControlPlane, name: str) -> tuple[str, str]:
    """Status and reason of Ready."""
    conditions = read(control, name).get("status", {}).get("conditions", [])
    for each in conditions:
        if each["type"] == "Ready":
            return each["status"], each["reason"]
    return "", ""


def served(agent: ClusterAgent, service: str) -> dict[str, list[str]]:
    """ADDRESS/PORT -> the backends there, for local sources."""
    found = read_frontends(agent.maps(), ServiceName(SHOP, service))
    return {
        f"{format_address(each.key.address)}/{each.key.port}": sorted(
            f"{format_address(backend.address)}/{backend.port}" for backend in each.local.backends
        )
        for each in (one.frontend for one in found)
    }


def wanted(ips: list[str], *clusters: str) -> dict[str, list[str]]:
    """What is served at the addresses of a ServiceImport."""
    found = {}
    for ip in ips:
        prefix, end = ("fd00:10:244:", "::7") if ":" in ip else ("10.244.", ".7")
        for port, target in ((80, 8080), (53, 5353)):
            found[f"{ip}/{port}"] = sorted(
                f"{prefix}{CLUSTERS[each]}{end}/{target}" for each in clusters
            )
    return found


def test_both_clusters_are_served_at_the_addresses_that_it_gets(control, controller, agent):
    asked = {"sessionAffinity": "ClientIP", "trafficDistribution": "PreferSameZone"}
    apply(control, service_import("db", **asked), *pieces("db", "west"), *pieces("db", "east"))
    wait_until_equal(lambda: told(control, "db"), ("True", "Ready"))
    ips = read(control, "db")["spec"]["ips"]
    ranges = [ip_network(SERVICES), ip_network(SERVICES6)]
    assert all(any(ip_address(ip) in one for ip in ips) for one in ranges)
    service = derived(control, "db")
    wait_until_equal(lambda: served(agent, service), wanted(ips, "west", "east"))
    listed = control.kubectl("-n", SHOP, "get", "endpointslices", "-o", "json")
    copies = [
        each["endpoints"][0]
        for each in json.loads(listed)["items"]
        if each["metadata"]["labels"].get("kubernetes.io/service-name") == service
    ]
    assert len(copies) == 4
    assert all("nodeName" not in each for each in copies)
    assert all(each["hints"]["forZones"] == [{"name": each["zone"]}] for each in copies)
    control.kubectl(*("-n", SHOP, "delete", "endpointslice", "db-east-ipv4", "db-east-ipv6"))
    wait_until_equal(lambda: served(agent, service), wanted(ips, "west"))
    # What the API server fills in is not taken for a difference.
    lines = controller.log.read_text().splitlines()
    assert not [each for each in lines if "PATCH" in each and "/services/" in each]


def test_changes_of_its_policies_and_families_are_taken_over(control, controller, agent):
    apply(control, service_import("policy"), *pieces("policy", "west"))
    wait_until_equal(lambda: told(control, "policy"), ("True", "Ready"))
    service, ips = derived(control, "policy"), read(control, "policy")["spec"]["ips"]
    wait_until_equal(lambda: served(agent, service), wanted(ips, "west"))
    changes = {"spec": {"internalTrafficPolicy": "Local", "ipFamilies": ["IPv4"]}}
    kind = "serviceimports.v1beta1.multicluster.x-k8s.io"
    change = ("patch", kind, "policy", "--type=merge", "-p", json.dumps(changes))
    control.kubectl("-n", SHOP, *change)
    first = [each for each in ips if ":" not in each]
    wait_until_equal(lambda: read(control, "policy")["spec"]["ips"], first)
    # A node of another cluster is none of this, whatever its name.
    wait_until_equal(lambda: served(agent, service), wanted(first))


def test_what_cannot_be_served_says_so(control, controller):
    twice = [{"port": 80}, {"port": 81}]
    apply(control, service_import("unnamed", ports=twice))
    wait_until_equal(lambda: told(control, "unnamed"), ("False", "Invalid"))
    apply(control, service_import("family", ipFamilies=["IPv5"]))
    wait_until_equal(lambda: told(control, "family"), ("False", "IPFamilyNotSupported"))
    apply(control, service_import("headless", type="Headless"))
    apply(control, service_import("after"))
    wait_until_equal(lambda: told(control, "after"), ("True", "Ready"))
    assert not derived(control, "headless")
    assert "status" not in read(control, "headless")


def test_what_it_had_goes_with_it_and_a_users_service_stays(control, controller):
    apply(control, service_import("gone"), service_import("user"))
    wait_until_equal(lambda: told(control, "user"), ("True", "Ready"))
    wait_until_equal(lambda: told(control, "gone"), ("True", "Ready"))
    mine = derived(control, "user")
    both = {f"service/{each}" for each in (derived(control, "gone"), mine)}
    control.kubectl("-n", SHOP, "delete", "serviceimport", "gone", "user")
    named = ("-n", SHOP, "get", "services", "-o", "name")
    wait_until(lambda: both.isdisjoint(control.kubectl(*named).split()), "gone")
    ports = {"spec": {"ports": [{"port": 80}]}}
    metadata = {"metadata": {"name": mine, "namespace": SHOP}}
    apply(control, {"apiVersion": "v1", "kind": "Service", **metadata, **ports})
    apply(control, service_import("user"))
    wait_until_equal(lambda: told(control, "user"), ("False", "Invalid"))
    assert not derived(control, "user")
    assert f"service/{mine}" in control.kubectl(*named)

# SPDX-License-Identifier: Apache-2.0
"""Services that claim addresses in use elsewhere: their traffic does not change."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ebpflb.lab import LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.command import metric, status
from tests.e2e.harness.in_force import service_ranges
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, Attempt, names, others, results
from tests.e2e.harness.waiting import wait_until

PORT = 80
KUBELET = 10250
# Below the numbers that the cluster assigns to Services, so that no other test has the address.
VICTIM = 91


def refused(node: LabNode) -> str:
    """The reported refusals of addresses."""
    return "\n".join(status(node)["agent"]["addresses_refused"])


def ways(cluster: Cluster, places: list[str], port: int) -> list[Attempt]:
    """From a pod and from a process of each node."""
    lab = cluster.lab
    members = [*lab.nodes, lab.pod("pod-1-1"), lab.pod("pod-2-1")]
    return [
        Attempt(member, place, port, protocol)
        for member in members
        for place in places
        for protocol in PROTOCOLS
    ]


def made(cluster: Cluster, spec: ServiceSpec, year: int, pod: str) -> list[dict[str, Any]]:
    """A Service with one pod, created in that year."""
    objects = cluster.lab.service(spec, [cluster.lab.pod(pod)])
    objects[0]["metadata"]["creationTimestamp"] = f"{year}-01-01T00:00:00Z"
    return objects


@pytest.fixture
def service_cidr(cluster: Cluster) -> Iterator[None]:
    """The lab's Service addresses are in a ServiceCIDR."""
    with service_ranges(cluster.lab):
        yield


def test_a_cluster_ip_goes_to_its_service_whoever_asked_before(cluster, lab, client):
    victim = replace(cluster.new("ClusterIP"), number=VICTIM)
    places = cluster.cluster_ips(victim)
    thief = cluster.new("ClusterIP", externalIPs=places)
    cluster.write(thief, made(cluster, thief, 2020, "pod-2-2"))
    outside = [Attempt(client, place, PORT, each) for place in places for each in PROTOCOLS]
    attempts = [*ways(cluster, places, PORT), *outside]
    assert others(results(attempts), "pod-2-2") == {}
    cluster.write(victim, made(cluster, victim, 2025, "pod-1-2"))
    assert others(results(attempts, times=4), "pod-1-2") == {}
    cluster.remove(victim)
    assert others(results(attempts), "pod-2-2") == {}


@pytest.mark.usefixtures("service_cidr")
def test_nobody_gets_cluster_ips_in_advance(cluster, lab):
    places = [lab.cluster_ip(VICTIM, version) for version in cluster.versions]
    thief = cluster.new("ClusterIP", externalIPs=places)
    cluster.write(thief, made(cluster, thief, 2020, "pod-2-2"))
    for node in lab.nodes:
        assert f"{thief.name}: externalIPs: {', '.join(places)} not served" in refused(node)
        assert metric(node, 'ebpflb_addresses_refused{reason="service_cidr"}') == len(places)
    seen = results(ways(cluster, places, PORT), seconds=0.4)
    assert not any(names(lab.pods) & each for each in seen.values())


@pytest.mark.parametrize("kind", ["external", "load-balancer"])
def test_a_nodes_address_gives_free_ports_and_keeps_those_of_its_servers(cluster, lab, kind):
    places = [address_of(lab.node("node1"), version) for version in cluster.versions]
    specs = [replace(cluster.new("ClusterIP"), port=port) for port in (PORT, KUBELET)]
    for spec in specs:
        objects = lab.service(spec, lab.pods)
        if kind == "external":
            objects[0]["spec"]["externalIPs"] = places
        else:
            ingress = [{"ip": place} for place in places]
            objects[0]["status"] = {"loadBalancer": {"ingress": ingress}}
        cluster.write(spec, objects, wait=False)
    node = lab.node("node1")
    wait_until(lambda: f"at port {KUBELET}" in refused(node), "told")
    outside = [
        Attempt(lab.client, place, port, protocol)
        for place in places
        for port in (PORT, KUBELET)
        for protocol in PROTOCOLS
    ]
    attempts = [*ways(cluster, places, PORT), *ways(cluster, places, KUBELET), *outside]
    seen = results(attempts)
    assert others({key: each for key, each in seen.items() if key[2] == KUBELET}, REFUSED) == {}
    free = {key: each for key, each in seen.items() if key[2] == PORT}
    assert set().union(*free.values()) <= names(lab.pods)

# SPDX-License-Identifier: Apache-2.0
"""A tenant among others: whatever its Services and EndpointSlices say, other Services keep working,
and once its objects are deleted, the agents have released everything that they held for them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.attackers import Attacker, Bystanders
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import AT_ONCE, fate
from tests.e2e.harness.waiting import wait_until

FILE, SPACE = "tenant.yaml", "tenant"
BUDGET = 300
# Far from those of other tests.
FIRST, MARKER = 2000, 1999
MANY, PORTS, ENDPOINTS, TURNS = 15, 10, 50, 4
MAPS = "lb_frontends", "lb_addrs"

Objects = list[dict[str, Any]]
Turns = Iterator[Objects]


def made(lab: Lab, number: int, name: str = "", **fields: Any) -> Objects:
    """A Service of the tenant, newer than any other Service, and its slices with the tenant's
    pod.
    """
    spec = ServiceSpec(name or f"own-{number}", number, spec=fields)
    objects = lab.service(spec, [lab.pod("pod-2-2")])
    for each in objects:
        each["metadata"] |= {"namespace": SPACE, "creationTimestamp": "2030-01-01T00:00:00Z"}
    return objects


def many_services(lab: Lab, _: ServiceSpec) -> Turns:
    """With many ports each."""
    turn = []
    for number in range(MANY):
        service, *slices = made(lab, FIRST + number)
        service["spec"]["ports"] = [
            {"name": f"p{port}", "protocol": "TCP", "port": port, "targetPort": port}
            for port in range(1, PORTS + 1)
        ]
        for each in slices:
            each["ports"] = [dict(each, port=each["port"]) for each in service["spec"]["ports"]]
        turn += [service, *slices]
    yield turn


def addresses_of_others(lab: Lab, spec: ServiceSpec) -> Turns:
    """As external IPs: those of the others' Service, of nodes and of pods."""
    versions = lab.config.family.versions
    wanted = [lab.cluster_ip(spec.number, version) for version in versions]
    wanted += [lab.ingress_ip(spec.number, version) for version in versions]
    wanted += [address for member in (*lab.nodes, *lab.pods) for address in member.addresses]
    turn = []
    for number, port in enumerate(
        (spec.port, spec.node_port, lab.config.port, 10249, 10256, 10250)
    ):
        service, *slices = made(lab, FIRST + number, externalIPs=wanted)
        for each in service["spec"]["ports"]:
            each["port"] = port
        turn += [service, *slices]
    yield turn


def endpoints_of_others(lab: Lab, spec: ServiceSpec) -> Turns:
    """Pods of others, on the wrong node; nodes; frontends of others; the LAN."""
    addresses = {
        f"IPv{version}": [
            *(address_of(pod, version) for pod in lab.pods),
            address_of(lab.node("node1"), version),
            lab.cluster_ip(spec.number, version),
            lab.ingress_ip(spec.number, version),
            address_of(lab.client, version),
        ]
        for version in lab.config.family.versions
    }
    service, *slices = made(lab, FIRST)
    for each in slices:
        each["endpoints"] = [
            {"addresses": [address], "conditions": {"ready": True}, "nodeName": "node2"}
            for address in addresses[each["addressType"]]
        ]
    yield [service, *slices]


def odd_names(lab: Lab, _: ServiceSpec) -> Turns:
    """Names of the maximum length, names like those of others, and invalid annotations."""
    turn = made(lab, FIRST, "a" * 63) + made(lab, FIRST + 1, "service-100")
    for each in turn:
        each["metadata"]["annotations"] = {
            "ebpflb.io/scheduler": "\x1b[31m; rm -rf /",
            "ebpflb.io/dsr": "{}",
            "ebpflb.io/ejection": "-1",
            "x" * 60: "y" * 10_000,
        }
    yield turn


def endpoints_that_come_and_go(lab: Lab, _: ServiceSpec) -> Turns:
    """Many at once, again and again."""
    for turn in range(TURNS):
        service, *slices = made(lab, FIRST)
        for each in slices:
            prefix = "203.0.113." if each["addressType"] == "IPv4" else "2001:db8:113::"
            each["endpoints"] = [
                {"addresses": [f"{prefix}{number}"], "conditions": {"ready": True}}
                for number in range(1 + turn % 2 * ENDPOINTS, 1 + (1 + turn % 2) * ENDPOINTS)
            ]
        yield [service, *slices]


ATTACKS: Mapping[str, Callable[[Lab, ServiceSpec], Turns]] = {
    "many Services": many_services,
    "addresses of others": addresses_of_others,
    "endpoints of others": endpoints_of_others,
    "odd names": odd_names,
    "endpoints that come and go": endpoints_that_come_and_go,
}


@pytest.fixture
def tenant(shared: Cluster) -> Iterator[Attacker]:
    lab = shared.lab
    yield Attacker("a tenant", lab.pod("pod-2-2"), BUDGET)
    lab.remove_manifests(FILE)


def is_served(lab: Lab, number: int) -> bool:
    """At a ClusterIP, on both nodes."""
    place = lab.cluster_ip(number, 4), 80
    pods = lab.pods[0], lab.pods[-1]
    return {fate(pod, *place, seconds=AT_ONCE) for pod in pods} == {"pod-2-2"}


def sizes(cluster: Cluster) -> list[int]:
    """Entries of the Service maps on each node."""
    return [
        sum(chunk.size for chunk in pinned_maps(node)[name].chunks())
        for node in cluster.nodes
        for name in MAPS
    ]


def grown(before: list[int], now: list[int]) -> list[int]:
    """The growth of each map. Addresses of earlier Services may be removed meanwhile."""
    return [new - old for old, new in zip(before, now, strict=True) if new > old]


@pytest.mark.parametrize("attack", ATTACKS)
def test_objects_of_a_tenant_do_not_affect_other_clients(
    shared: Cluster, spec: ServiceSpec, others: Bystanders, tenant: Attacker, attack: str
):
    lab, written = shared.lab, 0
    before = sizes(shared)
    with others.unharmed(BUDGET):
        for number, turn in enumerate(ATTACKS[attack](lab, spec)):
            objects = [*turn, *made(lab, MARKER - number)]
            written += len(objects)
            assert written <= tenant.budget
            lab.write_manifests(objects, FILE)
            marker = MARKER - number
            wait_until(lambda: is_served(lab, marker), "what the tenant wrote")  # noqa: B023
    lab.remove_manifests(FILE)
    wait_until(lambda: not grown(before, sizes(shared)), "nothing of it is left")

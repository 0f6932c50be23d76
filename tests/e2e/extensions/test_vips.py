# SPDX-License-Identifier: Apache-2.0
"""Load-balancer IPs and external IPs that a router sends to node1, which has no such address."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.extensions.ping import is_ping_unanswered, is_pinged
from tests.e2e.extensions.router import FIRST_TTL, NODE, forwarding, routed, sent_to_node
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    SILENCE_SECONDS,
    fate,
    is_silent,
    names,
    pods_at,
)
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.explained import explained, place, source_of
from tests.e2e.steps.health_check import ask

PORT, OTHER_PORT = 80, 4711
HEALTH = 32100
LOCAL = {"externalTrafficPolicy": "Local"}
VERSIONS = pytest.mark.parametrize("version", [4, 6])
KINDS = pytest.mark.parametrize("kind", ["LoadBalancer", "external"])


@pytest.fixture(autouse=True)
def _router(lab: Lab) -> Iterator[None]:
    with forwarding(lab):
        yield


class Served:
    """A Service with an address that the client reaches by the router."""

    def __init__(self, cluster: Cluster, version: int) -> None:
        self.cluster, self.lab, self.version = cluster, cluster.lab, version
        self.spec: ServiceSpec | None = None
        self.address = ""

    def serve(
        self,
        pods: Sequence[Member],
        kind: str = "LoadBalancer",
        wish: dict[str, str] | None = None,
        **spec: object,
    ) -> None:
        own = self.cluster.new("LoadBalancer" if kind == "LoadBalancer" else "ClusterIP")
        self.address = self.lab.ingress_ip(own.number, self.version)
        more = {} if kind == "LoadBalancer" else {"externalIPs": [self.address]}
        self.spec = replace(own, spec={**more, **spec}, annotations=wish or {})
        self.cluster.serve(self.spec, pods)

    def explained(self, port: int, protocol: str, status: int) -> dict[str, Any]:
        source = source_of(self.lab.client, self.version)
        node = self.lab.node(NODE)
        found: dict[str, Any] = explained(node, source, place(self.address, port, protocol), status)
        return found


@pytest.fixture
def served(cluster: Cluster, version: int) -> Served:
    return Served(cluster, version)


@contextmanager
def at_router(served: Served) -> Iterator[set[int]]:
    """Yields the TTLs of packets to the address on their way to node1."""
    with (
        routed(served.lab, served.address, served.version),
        sent_to_node(served.lab, served.address, served.version) as ttls,
    ):
        yield ttls


# Ports that no Service has


@VERSIONS
@KINDS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_port_that_no_service_has_is_refused_at_once(served, lab, kind, protocol):
    served.serve(lab.pods, kind)
    with at_router(served) as ttls:
        assert fate(lab.client, served.address, OTHER_PORT, protocol) == REFUSED
        assert pods_at(lab.client, served.address, PORT, protocol) == names(lab.pods)
        found = served.explained(OTHER_PORT, protocol, 1)
    assert ttls == {FIRST_TTL}
    assert (found["verdict"], found["kernel"]["reason"]) == ("refused", "unknown_port")


@VERSIONS
@KINDS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_service_may_have_it_dropped(served, lab, kind, protocol):
    served.serve(lab.pods, kind, {"vip-unserved": "drop"})
    with at_router(served) as ttls:
        assert is_silent(lab.client, served.address, OTHER_PORT, protocol)
        assert pods_at(lab.client, served.address, PORT, protocol) == names(lab.pods)
        found = served.explained(OTHER_PORT, protocol, 1)
    assert ttls == {FIRST_TTL}
    assert (found["verdict"], found["kernel"]["reason"]) == ("dropped", "unserved_port")


@VERSIONS
@KINDS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_service_may_have_it_passed_and_then_it_goes_round(served, lab, kind, protocol):
    served.serve(lab.pods, kind, {"vip-unserved": "pass"})
    with at_router(served) as ttls:
        fate(lab.client, served.address, OTHER_PORT, protocol, SILENCE_SECONDS)
        found = served.explained(OTHER_PORT, protocol, 4)
    assert min(ttls) <= 2
    assert len(ttls) > FIRST_TTL // 2 - 1
    assert found["verdict"] == "passes"


@VERSIONS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_machine_with_an_external_ip_keeps_its_other_ports(served, lab, protocol):
    """node1 is its router, as it is of this pod."""
    machine = lab.pod("pod-1-2")
    served.serve([lab.pod("pod-1-1")], "external")
    bits = {4: 32, 6: 128}[served.version]
    machine.exec(["ip", "address", "add", f"{served.address}/{bits}", "dev", "lo"])
    route = [served.address, "via", address_of(machine, served.version)]
    lab.node(NODE).exec(["ip", "route", "add", *route])
    port = lab.config.port
    with at_router(served) as ttls:
        for member in (lab.client, lab.pod("pod-1-1")):
            assert pods_at(member, served.address, port, protocol) == {machine.name}
            assert pods_at(member, served.address, PORT, protocol) == {"pod-1-1"}
        assert is_pinged(lab.client, served.address, served.version)
    assert ttls == {FIRST_TTL}
    lab.node(NODE).exec(["ip", "route", "del", *route])
    machine.exec(["ip", "address", "del", f"{served.address}/{bits}", "dev", "lo"])


# Pings


@VERSIONS
@KINDS
def test_an_address_that_serves_answers_pings(served, lab, kind):
    served.serve(lab.pods, kind)
    with at_router(served) as ttls:
        for member in (lab.client, lab.pod("pod-2-1"), lab.pod("pod-1-1"), lab.node(NODE)):
            assert is_pinged(member, served.address, served.version), member.name
    assert max(ttls) - min(ttls) <= 1


@VERSIONS
def test_a_cluster_ip_that_serves_answers_pings(served, lab, client):
    served.serve(lab.pods)
    address = lab.cluster_ip(served.spec.number, served.version)
    for member in (client, lab.pod("pod-1-1"), lab.pod("pod-2-1"), *lab.nodes):
        assert is_pinged(member, address, served.version), member.name
    served.cluster.write(served.spec, lab.service(served.spec, []))
    for member in (client, lab.pod("pod-1-1"), *lab.nodes):
        assert is_ping_unanswered(member, address, served.version), member.name


@VERSIONS
@pytest.mark.parametrize("where", ["nowhere", "elsewhere"])
def test_a_node_that_does_not_serve_answers_no_pings(served, lab, where):
    served.serve(lab.pods_on("node2") if where == "elsewhere" else [], **LOCAL)
    with at_router(served):
        assert is_ping_unanswered(lab.client, served.address, served.version)
    served.cluster.write(served.spec, lab.service(served.spec, lab.pods))
    with at_router(served):
        assert is_pinged(lab.client, served.address, served.version)


# Policy Local without an endpoint here


@VERSIONS
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wish", [{}, {"no-local-endpoint": "pass"}], ids=["drop", "pass"])
def test_another_site_answers_where_this_node_has_no_endpoint(served, lab, protocol, wish):
    """node1 routes the address to node2, which has one."""
    there = lab.pods_on("node2")
    served.serve(there, wish=wish, **LOCAL)
    route = [served.address, "via", address_of(lab.node("node2"), served.version)]
    lab.node(NODE).exec(["ip", "route", "add", *route])
    with at_router(served) as ttls:
        if wish:
            assert pods_at(lab.client, served.address, PORT, protocol) == names(there)
            assert served.explained(PORT, protocol, 4)["verdict"] == "passes"
        else:
            assert is_silent(lab.client, served.address, PORT, protocol)
            assert served.explained(PORT, protocol, 1)["verdict"] == "dropped"
    assert ttls == {FIRST_TTL}
    lab.node(NODE).exec(["ip", "route", "del", *route])


# The health check node port


@VERSIONS
def test_load_balancers_check_the_node_at_their_own_address(served, lab):
    outside = ["198.51.100.0/24", "2001:db8:100::/48"]
    served.serve(
        lab.pods_on("node2"), healthCheckNodePort=HEALTH, loadBalancerSourceRanges=outside, **LOCAL
    )
    at_node = address_of(lab.node(NODE), served.version)
    with at_router(served) as ttls:
        expected = ask(lab.client, at_node, HEALTH)
        assert expected.status == 503
        assert ask(lab.client, served.address, HEALTH) == expected
        assert is_silent(lab.client, served.address, PORT)
        assert fate(lab.client, served.address, OTHER_PORT) == REFUSED
        assert served.explained(HEALTH, "tcp", 0)["verdict"] == "translated"
        served.cluster.write(served.spec, lab.service(served.spec, lab.pods))
        wait_until(lambda: ask(lab.client, served.address, HEALTH).status == 200, "it is healthy")
    assert ttls == {FIRST_TTL}


@VERSIONS
def test_under_policy_cluster_there_is_no_health_check(served, lab):
    served.serve(lab.pods, healthCheckNodePort=HEALTH)
    with at_router(served):
        assert fate(lab.client, served.address, HEALTH) == REFUSED

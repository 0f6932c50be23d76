# SPDX-License-Identifier: Apache-2.0
"""A ClusterIP that is also an address of the node, as with NodeLocal DNSCache: a listener wins.

kube-proxy's rules do not apply there because the cache disables them with NOTRACK.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.address import parse_address
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, Attempt, results
from tests.e2e.harness.sockets import LISTENER, connected, exchange, listening
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.explained import explained, place, source_of

PORT = 80
OTHER_PORT = 9153
LISTENS = "a process of the node listens there"
ANYWHERE = ["0.0.0.0", "::"]


@contextmanager
def on_the_node(lab: Lab, addresses: list[str]) -> Iterator[None]:
    """node1 has these addresses."""
    node = lab.node("node1")
    for address in addresses:
        node.exec(["ip", "addr", "add", address, "dev", "lo"])
    try:
        yield
    finally:
        for address in addresses:
            bits = 128 if ":" in address else 32
            node.exec(["ip", "addr", "del", f"{address}/{bits}", "dev", "lo"])


def clients(lab: Lab) -> tuple[Member, ...]:
    """The possible clients at node1."""
    return lab.node("node1"), lab.pod("pod-1-1"), lab.client


def who_answers(cluster: Cluster, spec: ServiceSpec, port: int = PORT) -> set[str]:
    """Every reply on any path by node1, both protocols and families."""
    attempts = [
        Attempt(member, address, port, protocol)
        for member in clients(cluster.lab)
        for address in cluster.cluster_ips(spec)
        for protocol in PROTOCOLS
    ]
    return set().union(*results(attempts).values())


@pytest.fixture
def spec(cluster: Cluster) -> Iterator[ServiceSpec]:
    """A Service with a pod of the other node, whose ClusterIPs node1 has."""
    made = cluster.serve(cluster.new("ClusterIP"), [cluster.lab.pod("pod-2-1")])
    addresses = cluster.cluster_ips(made)
    with on_the_node(cluster.lab, addresses):
        lookups = Lookups(pinned_maps(cluster.lab.node("node1")))
        for address in map(parse_address, addresses):
            wait_until(partial(lookups.is_cluster_ip_of_node, address), "the agent knows it")
        yield made


@pytest.mark.usefixtures("client")
def test_what_listens_there_wins_while_it_listens(cluster, lab, spec):
    addresses = cluster.cluster_ips(spec)
    assert who_answers(cluster, spec) == {"pod-2-1"}
    for _ in range(2):
        with listening(lab.node("node1"), addresses, PORT):
            assert who_answers(cluster, spec) == {LISTENER}
        assert who_answers(cluster, spec) == {"pod-2-1"}
    with listening(lab.node("node1"), ANYWHERE, PORT):
        assert who_answers(cluster, spec) == {"pod-2-1"}


@pytest.mark.usefixtures("client")
def test_the_service_is_back_when_the_listener_goes_with_the_address(cluster, lab):
    spec = cluster.serve(cluster.new("ClusterIP"), [lab.pod("pod-2-1")])
    addresses = cluster.cluster_ips(spec)
    with on_the_node(lab, addresses), listening(lab.node("node1"), addresses, PORT):
        wait_until_equal(lambda: who_answers(cluster, spec), {LISTENER})
    assert who_answers(cluster, spec) == {"pod-2-1"}


@pytest.mark.usefixtures("client")
def test_other_ports_and_nodes_are_not_the_listeners(cluster, lab, spec):
    with listening(lab.node("node1"), cluster.cluster_ips(spec), OTHER_PORT):
        assert who_answers(cluster, spec, OTHER_PORT) == {LISTENER}
        assert who_answers(cluster, spec) == {"pod-2-1"}
        for address in cluster.cluster_ips(spec):
            ways = [Attempt(lab.node("node2"), address, OTHER_PORT, each) for each in PROTOCOLS]
            assert set().union(*results(ways).values()) == {REFUSED}


@pytest.mark.usefixtures("client")
def test_a_service_without_endpoints_has_the_listener(cluster, lab, spec):
    cluster.serve(spec, [])
    with listening(lab.node("node1"), cluster.cluster_ips(spec), PORT):
        assert who_answers(cluster, spec) == {LISTENER}
    assert who_answers(cluster, spec) == {REFUSED}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_flows_stay_where_they_began(cluster, lab, spec, version, protocol):
    address = lab.cluster_ip(spec.number, version)
    for member in clients(lab):
        with connected(member, address, PORT, protocol) as early:
            assert exchange(early) == "pod-2-1"
            with listening(lab.node("node1"), [address], PORT):
                assert exchange(early) == "pod-2-1"
                with connected(member, address, PORT, protocol) as late:
                    assert LISTENER in exchange(late)


def why(lab: Lab, member: Member, address: str, protocol: str, status: int) -> str:
    """The reason that `explain` gives at the end, for a node or one of its pods."""
    source = source_of(member, 6 if ":" in address else 4)
    found = explained(lab.node("node1"), source, place(address, PORT, protocol), status)
    return str(found["kernel"]["why"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_explain_names_the_listener(cluster, lab, spec, protocol):
    for member in (lab.node("node1"), lab.pod("pod-1-1")):
        for address in cluster.cluster_ips(spec):
            with listening(lab.node("node1"), [address], PORT):
                assert why(lab, member, address, protocol, 1) == LISTENS
            assert why(lab, member, address, protocol, 0) == ""

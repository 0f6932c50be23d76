# SPDX-License-Identifier: Apache-2.0
"""Every kind of client at every kind of frontend under every policy: which pods reply, what they
see.

The Services' pods are pod-1-2 on the entry node and pod-2-2 on another one.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.harness.cluster import address_of, started
from tests.e2e.harness.gateway import (
    CLIENTS,
    CLUSTER_IP,
    EXTERNAL,
    FRONTENDS,
    LOAD_BALANCER,
    LOCAL_CLIENTS,
    NODE_PORT,
    OUTSIDE,
    Gateway,
    Way,
    route_to_services,
)
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.questions import (
    PATIENCE,
    PROTOCOLS,
    REFUSED,
    SILENCE_SECONDS,
    SILENT,
    answers,
    fate,
    names,
)

HERE, ELSEWHERE = "pod-1-2", "pod-2-2"
LOCAL = {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}

# The clients that a local and a remote pod see. A packet that leaves the node again has the node's
# address, which the node's own packets have anyway.
SEEN = {
    "pod-1-1": ("pod-1-1", "pod-1-1"),
    "node1": ("node1", "node1"),
    "pod-2-1": ("pod-2-1", "node1"),
    "client": ("client", "node1"),
    "node2": ("node2", "node1"),
}


@pytest.fixture(scope="module")
def gateway(own_lab, tmp_path_factory) -> Iterator[Gateway]:
    with started(own_lab, tmp_path_factory.mktemp("gateway"), nodes=["node1"]) as cluster:
        route_to_services(cluster, [own_lab.client, own_lab.node("node2")])
        yield Gateway(cluster)


@pytest.fixture(scope="module")
def everywhere(gateway):
    """Policy Cluster."""
    return gateway.serve(HERE, ELSEWHERE)


@pytest.fixture(scope="module")
def local(gateway):
    """Both policies Local, with a pod on the node."""
    return gateway.serve(HERE, ELSEWHERE, **LOCAL)


@pytest.fixture(scope="module")
def elsewhere(gateway):
    """Both policies Local, with no pod on the node."""
    return gateway.serve(ELSEWHERE, **LOCAL)


@pytest.fixture(scope="module")
def empty(gateway):
    """No pods, one Service with each policy."""
    return [gateway.serve(), gateway.serve(**LOCAL)]


def expected(way: Way, *pods: str) -> Mapping[str, set[str]]:
    """Each of these pods replies and has seen the right client."""
    seen = dict(zip((HERE, ELSEWHERE), SEEN[way.client], strict=True))
    return {pod: {seen[pod]} for pod in pods}


def wrong(gateway: Gateway, spec, client: str, frontend: str, *pods: str) -> dict[Way, object]:
    """The paths on which not exactly these pods reply, or one saw another client."""
    found = gateway.seen(spec, client, frontend)
    return {way: seen for way, seen in found.items() if seen != expected(way, *pods)}


def other_fates(gateway: Gateway, spec, client: str, frontend: str, error: str) -> dict[Way, str]:
    """The paths with another result."""
    seconds = SILENCE_SECONDS if error == SILENT else PATIENCE
    found = gateway.fates(spec, client, frontend, seconds)
    return {way: seen for way, seen in found.items() if seen != error}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_cluster_ip_leads_to_all_pods(gateway, everywhere, client):
    assert wrong(gateway, everywhere, client, CLUSTER_IP, HERE, ELSEWHERE) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_cluster_ip_of_internal_policy_local_leads_to_the_pod_of_this_node(
    gateway, local, client
):
    assert wrong(gateway, local, client, CLUSTER_IP, HERE) == {}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("frontend", EXTERNAL)
def test_external_policy_cluster_leads_everybody_to_all_pods(gateway, everywhere, client, frontend):
    assert wrong(gateway, everywhere, client, frontend, HERE, ELSEWHERE) == {}


@pytest.mark.parametrize("client", LOCAL_CLIENTS)
@pytest.mark.parametrize("frontend", EXTERNAL)
def test_external_policy_local_leads_who_is_on_the_node_to_all_pods(
    gateway, local, client, frontend
):
    assert wrong(gateway, local, client, frontend, HERE, ELSEWHERE) == {}


@pytest.mark.parametrize("client", OUTSIDE)
@pytest.mark.parametrize("frontend", EXTERNAL)
def test_external_policy_local_leads_others_to_the_pod_here_with_their_address(
    gateway, local, client, frontend
):
    assert wrong(gateway, local, client, frontend, HERE) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_load_balancer_ip_of_mode_proxy_is_not_served(gateway, client):
    spec = gateway.cluster.new("LoadBalancer")
    objects = gateway.lab.service(spec, [gateway.lab.pod(HERE)])
    for ingress in objects[0]["status"]["loadBalancer"]["ingress"]:
        ingress["ipMode"] = "Proxy"
    gateway.lab.write_manifests(objects, "proxy.yaml")
    wait_in_force(gateway.cluster.nodes)
    try:
        assert wrong(gateway, spec, client, NODE_PORT, HERE) == {}
        assert other_fates(gateway, spec, client, LOAD_BALANCER, SILENT) == {}
    finally:
        gateway.lab.remove_manifests("proxy.yaml")


@pytest.mark.parametrize("client", LOCAL_CLIENTS)
def test_the_node_port_of_another_node_is_left_to_that_node(gateway, everywhere, client):
    node = gateway.lab.node("node2")
    for address in node.addresses:
        for protocol in PROTOCOLS:
            place = (address, everywhere.node_port)
            assert fate(gateway.lab.member(client), *place, protocol) == REFUSED


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["pod-1-1", "node1"])
def test_at_the_node_port_of_another_node_one_is_a_client_from_outside(
    cluster, lab, name, protocol
):
    spec = cluster.serve(cluster.new(externalTrafficPolicy="Local"), lab.pods)
    asking = lab.member(name)
    for version in cluster.versions:
        place = (address_of(lab.node("node2"), version), spec.node_port)
        found = answers(asking, *place, protocol)
        assert {each["pod"] for each in found} == names(lab.pods_on("node2"))
        assert {each["client_address"] for each in found} == {address_of(asking, version)}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_without_any_endpoint_everybody_is_refused_whatever_the_policy(
    gateway, empty, client, frontend
):
    for spec in empty:
        assert other_fates(gateway, spec, client, frontend, REFUSED) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_internal_policy_local_without_a_pod_here_is_silent(gateway, elsewhere, client):
    assert other_fates(gateway, elsewhere, client, CLUSTER_IP, SILENT) == {}


@pytest.mark.parametrize("client", OUTSIDE)
@pytest.mark.parametrize("frontend", EXTERNAL)
def test_external_policy_local_without_a_pod_here_is_silent_to_others(
    gateway, elsewhere, client, frontend
):
    assert other_fates(gateway, elsewhere, client, frontend, SILENT) == {}


@pytest.mark.parametrize("client", LOCAL_CLIENTS)
@pytest.mark.parametrize("frontend", EXTERNAL)
def test_external_policy_local_without_a_pod_here_serves_who_is_on_the_node(
    gateway, elsewhere, client, frontend
):
    assert wrong(gateway, elsewhere, client, frontend, ELSEWHERE) == {}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_port_that_a_cluster_ip_does_not_have_is_refused(gateway, everywhere, client):
    member = gateway.lab.member(client)
    for place in gateway.cluster.cluster_ips(everywhere):
        for protocol in PROTOCOLS:
            assert fate(member, place, everywhere.node_port, protocol) == REFUSED

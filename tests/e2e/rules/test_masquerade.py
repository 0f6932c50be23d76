# SPDX-License-Identifier: Apache-2.0
"""The client that pods see: with --masquerade-all a node, wherever policy allows it."""

import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import pytest

from ebpflb.lab import Cni, LabConfig, Member
from ebpflb.lab.ask import enough
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.questions import PROTOCOLS, answers
from tests.e2e.harness.sockets import connected, echo, exchange
from tests.e2e.mode import present_mode

PORT = 80
TIMES = enough(2)
BULK = bytes(range(256)) * 20_000
PODS = ("pod-1-2", "pod-2-1")

Seen = dict[str, set[str]]


@pytest.fixture(scope="module", params=Cni)
def masquerading(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("masquerading")
    with (
        built(LabConfig(lab_name(), pods=2, cni=request.param)) as lab,
        started(lab, logs, ["--masquerade-all"]) as cluster,
    ):
        route_services(cluster)
        yield cluster


def route_services(cluster: Cluster) -> None:
    """The external client reaches ClusterIPs by node1."""
    for ranges in cluster.lab.layout.ranges:
        via = address_of(cluster.lab.node("node1"), ranges.version)
        cluster.lab.client.exec(["ip", "route", "replace", str(ranges.services()), "via", via])


def own_addresses(member: Member) -> set[str]:
    """Every address of a member, including those of a pods' gateway."""
    devices = json.loads(member.exec(["ip", "-json", "addr"]).stdout)
    return {found["local"] for device in devices for found in device["addr_info"]}


def seen_by(cluster: Cluster, member: Member, address: str, port: int, protocol: str) -> Seen:
    """The pods that reply, and the client that each of them has seen."""
    seen: Seen = {}
    for each in answers(member, address, port, protocol, TIMES):
        seen.setdefault(each.get("pod") or each["error"], set()).add(each.get("client_address", ""))
    return seen


def places(cluster: Cluster, policy: str, version: int) -> Iterator[tuple[str, int]]:
    """ClusterIP, NodePort and load-balancer IP of a new Service with a pod on each node."""
    spec = cluster.new("LoadBalancer", externalTrafficPolicy=policy)
    lab = cluster.lab
    cluster.serve(spec, [lab.pod(name) for name in PODS])
    yield lab.cluster_ip(spec.number, version), PORT
    yield address_of(lab.node("node1"), version), spec.node_port
    yield lab.ingress_ip(spec.number, version), PORT


def assert_seen(seen: Seen, clients: Mapping[str, set[str]]) -> None:
    """Each of these pods replies, and has seen only addresses listed as its clients."""
    assert seen.keys() == clients.keys()
    for pod, found in seen.items():
        assert found <= clients[pod], pod


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_masqueraded_backends_see_the_node_whoever_asks(masquerading, version, protocol):
    lab = masquerading.lab
    node = own_addresses(lab.node("node1"))
    for place in places(masquerading, "Cluster", version):
        for member in (lab.pod("pod-1-1"), lab.node("node1"), lab.client):
            seen = seen_by(masquerading, member, *place, protocol)
            assert_seen(seen, dict.fromkeys(PODS, node))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_the_external_policy_local_keeps_its_promise_nevertheless(masquerading, version, protocol):
    lab = masquerading.lab
    pod, node, client = lab.pod("pod-1-1"), lab.node("node1"), lab.client
    cluster_ip, *external = places(masquerading, "Local", version)
    for place in external:
        for member in (pod, node):
            seen = seen_by(masquerading, member, *place, protocol)
            assert_seen(seen, dict.fromkeys(PODS, own_addresses(member)))
        seen = seen_by(masquerading, client, *place, protocol)
        assert_seen(seen, {"pod-1-2": set(client.addresses)})
    seen = seen_by(masquerading, pod, *cluster_ip, protocol)
    assert_seen(seen, dict.fromkeys(PODS, own_addresses(node)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_a_pod_still_reaches_itself(masquerading, version, protocol):
    pod = masquerading.lab.pod("pod-1-1")
    spec = masquerading.serve(masquerading.new(), [pod])
    place = (masquerading.lab.cluster_ip(spec.number, version), PORT)
    with connected(pod, *place, protocol) as itself:
        assert [exchange(itself) for _ in range(3)] == [pod.name] * 3


@pytest.mark.parametrize("version", [4, 6])
def test_bulk_through_a_masqueraded_frontend_arrives_as_it_was_sent(masquerading, version):
    lab = masquerading.lab
    for backend in PODS:
        spec = masquerading.serve(masquerading.new(), [lab.pod(backend)])
        for member in (lab.pod("pod-1-1"), lab.client):
            with connected(member, lab.cluster_ip(spec.number, version), PORT) as bulk:
                assert echo(bulk, BULK) == BULK


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_otherwise_only_what_comes_from_outside_and_goes_on_is_masqueraded(
    cluster, lab, client, version, protocol
):
    pod, node = lab.pod("pod-1-1"), lab.node("node1")
    for place in places(cluster, "Cluster", version):
        for member in (pod, node):
            seen = seen_by(cluster, member, *place, protocol)
            assert_seen(seen, dict.fromkeys(PODS, own_addresses(member)))
        seen = seen_by(cluster, client, *place, protocol)
        is_cluster_ip = ip_address(place[0]) in lab.layout.ranges_of(version).services()
        is_kept = present_mode().has_dsr and not is_cluster_ip
        elsewhere = set(client.addresses) if is_kept else own_addresses(node)
        assert_seen(seen, {"pod-1-2": set(client.addresses), "pod-2-1": elsewhere})

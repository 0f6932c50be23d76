# SPDX-License-Identifier: Apache-2.0
"""loadBalancerSourceRanges: which clients a load-balancer IP serves, and what others get."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    SILENCE_SECONDS,
    SILENT,
    Attempt,
    names,
    node_ports,
    others,
    pods_at,
    results,
)
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.steps.limited import NOBODY, limited, lone, vips

PORT = 80
EVERYBODY = ("0.0.0.0/0", "::/0")
CHANGES = 12


def everybody(lab: Lab) -> list[Member]:
    return [lab.client, lab.node("node1"), *lab.pods_on("node1"), lab.pods_on("node2")[0]]


def attempts(members: Iterable[Member], places: Iterable[str], protocol: str) -> list[Attempt]:
    return [Attempt(member, place, PORT, protocol) for member in members for place in places]


def assert_served(
    lab: Lab, members: Iterable[Member], places: Iterable[str], protocol: str
) -> None:
    found = results(attempts(members, places, protocol))
    assert {key: seen for key, seen in found.items() if not seen <= names(lab.pods)} == {}


def assert_silent(members: Iterable[Member], places: Iterable[str], protocol: str) -> None:
    """These clients do not even get an error."""
    asked = attempts(members, places, protocol)
    assert others(results(asked, seconds=SILENCE_SECONDS), SILENT) == {}


def assert_only(cluster: Cluster, spec: ServiceSpec, members: list[Member], protocol: str) -> None:
    """These reach the load-balancer IPs; all others get neither a reply nor an error."""
    lab, places, allowed = cluster.lab, vips(cluster, spec), names(members)
    assert_served(lab, members, places, protocol)
    assert_silent([each for each in everybody(lab) if each.name not in allowed], places, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_load_balancer_ip_is_for_those_in_a_range(cluster, lab, protocol):
    spec = cluster.new("LoadBalancer")
    node = lab.node("node1")
    for members in ([lab.client], [lab.pod("pod-1-1"), node], [node, lab.client]):
        cluster.serve(limited(spec, lone(*members)), lab.pods)
        assert_only(cluster, spec, members, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ranges_that_are_for_nobody_or_everybody(cluster, lab, protocol):
    spec = cluster.new("LoadBalancer")
    for ranges, members in (
        ((*EVERYBODY, *NOBODY), everybody(lab)),
        (NOBODY, []),
        ((), everybody(lab)),
    ):
        cluster.serve(limited(spec, ranges), lab.pods)
        assert_only(cluster, spec, members, protocol)


def test_a_family_without_ranges_is_for_everybody(cluster, lab):
    spec = cluster.serve(limited(cluster.new("LoadBalancer"), NOBODY[:1]), lab.pods)
    ipv4, ipv6 = vips(cluster, spec)
    for protocol in PROTOCOLS:
        assert_silent(everybody(lab), [ipv4], protocol)
        assert_served(lab, everybody(lab), [ipv6], protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cluster_ips_and_node_ports_are_for_everybody(cluster, lab, protocol):
    spec = cluster.serve(limited(cluster.new("LoadBalancer"), NOBODY), lab.pods)
    for place in node_ports(cluster, spec):
        for member in (lab.client, lab.node("node1"), lab.pod("pod-1-1")):
            assert pods_at(member, place, spec.node_port, protocol) == names(lab.pods)
    for place in cluster.cluster_ips(spec):
        for member in (lab.node("node1"), lab.pod("pod-1-1")):
            assert pods_at(member, place, PORT, protocol) == names(lab.pods)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_pods_only_clients_in_a_range_are_refused(cluster, lab, protocol):
    members = everybody(lab)
    for allowed, excluded in ((members[:2], members[2:]), (members[2:], members[:2])):
        spec = cluster.serve(limited(cluster.new("LoadBalancer"), lone(*allowed)))
        places = vips(cluster, spec)
        assert others(results(attempts(allowed, places, protocol)), REFUSED) == {}
        assert_silent(excluded, places, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_connections_outlive_a_change_of_ranges(cluster, lab, protocol):
    members = [lab.client, lab.node("node1"), lab.pod("pod-1-1")]
    spec = cluster.serve(limited(cluster.new("LoadBalancer"), lone(*members)), lab.pods)
    with ExitStack() as stack:
        held = {
            (member.name, place): stack.enter_context(connected(member, place, PORT, protocol))
            for member in members
            for place in vips(cluster, spec)
        }
        pods = {way: exchange(connection) for way, connection in held.items()}
        for ranges in (NOBODY, lone(lab.pod("pod-1-2"))):
            cluster.serve(limited(spec, ranges), lab.pods)
            assert {way: exchange(each) for way, each in held.items()} == pods
            assert_silent(members, vips(cluster, spec), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_is_in_the_old_and_the_new_ranges_notices_no_change(cluster, lab, protocol):
    members = [lab.client, lab.node("node1"), lab.pod("pod-1-1")]
    spec = cluster.serve(limited(cluster.new("LoadBalancer"), lone(*members)), lab.pods)
    options = {"protocol": protocol, "rate": 40.0, "timeout": 5.0, "workers": 8}
    with ExitStack() as stack:
        loads = [
            stack.enter_context(member.start_load(place, PORT, **options))
            for member in members
            for place in vips(cluster, spec)
        ]
        for ranges in islice(cycle([lone(*lab.pods, *members), (), lone(*members)]), CHANGES):
            cluster.serve(limited(spec, ranges), lab.pods)
        results = [load.stop() for load in loads]
    assert [each.errors for each in results if each.failed or not each.ok] == []


@pytest.fixture(scope="module")
def without_cover(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent that takes no device for a pod's."""
    options = ["--workload-devices", "none*"]
    with started(own_lab, tmp_path_factory.mktemp("bare"), options, ["node1"]) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pod_whose_address_is_not_known_is_refused(without_cover, protocol):
    lab = without_cover.lab
    pod = lab.pod("pod-1-1")
    spec = limited(without_cover.new("LoadBalancer"), lone(pod, lab.client, lab.node("node1")))
    without_cover.serve(spec, lab.pods)
    places = vips(without_cover, spec)
    assert others(results(attempts([pod], places, protocol)), REFUSED) == {}
    assert_served(lab, [lab.client, lab.node("node1")], places, protocol)
    assert_served(lab, [pod], without_cover.cluster_ips(spec), protocol)

# SPDX-License-Identifier: Apache-2.0
"""loadBalancerSourceRanges: whom a load-balancer IP is for, and what becomes of the others."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    fate,
    is_silent,
    names,
    node_ports,
    pods_at,
)
from tests.e2e.harness.sockets import connected, exchange

PORT = 80
NOBODY = ("203.0.113.7/32", "2001:db8:113::7/128")
EVERYBODY = ("0.0.0.0/0", "::/0")
CHANGES = 12


def lone(*members: Member) -> tuple[str, ...]:
    """The ranges of these members alone, in each family."""
    addresses = (address for member in members for address in member.addresses)
    return tuple(f" {each}/{128 if ':' in each else 32}" for each in addresses)


def limited(spec: ServiceSpec, ranges: tuple[str, ...]) -> ServiceSpec:
    return replace(spec, spec={**spec.spec, "loadBalancerSourceRanges": list(ranges)})


def vips(cluster: Cluster, spec: ServiceSpec) -> list[str]:
    return [cluster.lab.ingress_ip(spec.number, version) for version in cluster.versions]


def everybody(lab: Lab) -> list[Member]:
    return [lab.client, lab.node("node1"), *lab.pods_on("node1"), lab.pods_on("node2")[0]]


def assert_only(cluster: Cluster, spec: ServiceSpec, members: list[Member], protocol: str) -> None:
    """These reach the load-balancer IPs, and nobody else does or is told why."""
    lab = cluster.lab
    allowed = names(members)
    for place in vips(cluster, spec):
        for member in everybody(lab):
            if member.name in allowed:
                assert fate(member, place, PORT, protocol) in names(lab.pods), (member.name, place)
            else:
                assert is_silent(member, place, PORT, protocol), (member.name, place)


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
        for member in everybody(lab):
            assert is_silent(member, ipv4, PORT, protocol)
            assert fate(member, ipv6, PORT, protocol) in names(lab.pods)


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
def test_without_pods_only_those_in_a_range_are_refused(cluster, lab, protocol):
    members = everybody(lab)
    for allowed, others in ((members[:2], members[2:]), (members[2:], members[:2])):
        spec = cluster.serve(limited(cluster.new("LoadBalancer"), lone(*allowed)))
        for place in vips(cluster, spec):
            assert {fate(each, place, PORT, protocol) for each in allowed} == {REFUSED}
            assert all(is_silent(each, place, PORT, protocol) for each in others)


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
            for place in vips(cluster, spec):
                assert all(is_silent(each, place, PORT, protocol) for each in members)


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
    for place in vips(without_cover, spec):
        assert fate(pod, place, PORT, protocol) == REFUSED
        for member in (lab.client, lab.node("node1")):
            assert fate(member, place, PORT, protocol) in names(lab.pods)
    for version in without_cover.versions:
        place = lab.cluster_ip(spec.number, version)
        assert fate(pod, place, PORT, protocol) in names(lab.pods)

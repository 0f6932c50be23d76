# SPDX-License-Identifier: Apache-2.0
"""Session affinity: which pod a client returns to, over which frontends, for how long."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from ebpflb.dataplane.layout.structs import LbClientKey
from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import (
    PROTOCOLS,
    Attempt,
    Results,
    names,
    node_ports,
    pods_at,
    results,
)
from tests.e2e.harness.sockets import opened, send_and_hear
from tests.e2e.harness.waiting import wait_until

TIMES = 15
SHORT_TIMEOUT = 10
BY_COOKIE = {"0000000000000004", "0000000000000006"}
Places = list[tuple[str, int]]


def with_affinity(cluster: Cluster, pods: Sequence[Member], **spec) -> ServiceSpec:
    """A Service with session affinity."""
    return cluster.serve(cluster.new(sessionAffinity="ClientIP", **spec), pods)


def places(cluster: Cluster, spec: ServiceSpec, version: int, *, inside: bool = True) -> Places:
    """The frontends of one family at node1; those inside the cluster are the ClusterIP's."""
    found = [(each, spec.node_port) for each in node_ports(cluster, spec)]
    found += [(each, spec.port) for each in cluster.cluster_ips(spec)] if inside else []
    return [place for place in found if (":" in place[0]) == (version == 6)]


def attempts(members: Iterable[Member], found: Places, protocol: str) -> list[Attempt]:
    return [Attempt(member, *place, protocol) for member in members for place in found]


def met(member: Member, found: Places, protocol: str, times: int = TIMES) -> set[str]:
    """The pods that reply at any of these addresses."""
    # Concurrent first connections may each choose a backend.
    first = results(attempts([member], found[:1], protocol))
    every = results(attempts([member], found, protocol), times=times)
    return set().union(*first.values(), *every.values())


def members(cluster: Cluster) -> list[Member]:
    """A process of node1, its pods, and the external client."""
    lab = cluster.lab
    return [lab.node("node1"), *lab.pods_on("node1"), lab.client]


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_meets_one_pod_at_all_frontends(cluster, lab, client, protocol, policy):
    spec = with_affinity(cluster, lab.pods, externalTrafficPolicy=policy)
    for version in cluster.versions:
        for member in members(cluster):
            inside = policy == "Cluster" or member is not lab.client
            found = places(cluster, spec, version, inside=inside)
            (pod,) = met(member, found, protocol)
            assert pod in names(lab.pods)
            if not inside:
                assert pod in names(lab.pods_on("node1"))


def test_each_service_port_has_its_own_clients(cluster, lab, client):
    # Each of 24 pairs gets the same one of four pods by chance once in 10^14 runs.
    specs = [with_affinity(cluster, lab.pods) for _ in range(3)]
    pairs = [
        [met(member, places(cluster, spec, version), protocol, 1) for protocol in PROTOCOLS]
        for spec in specs
        for version in cluster.versions
        for member in members(cluster)
    ]
    assert all(len(pods) == 1 for pair in pairs for pods in pair)
    assert any(tcp != udp for tcp, udp in pairs)


def heard_in_time(asking: Sequence[Attempt]) -> Results:
    """Which pods clients get that return within the timeout, for longer than the timeout in
    total.
    """
    while True:
        began = asked = time.monotonic()
        before, in_time = results(asking), True
        while in_time and asked - began <= SHORT_TIMEOUT:
            time.sleep(SHORT_TIMEOUT / 4)
            now, found = time.monotonic(), results(asking)
            # A machine that takes longer than the timeout between two requests starts over.
            in_time = time.monotonic() - asked < SHORT_TIMEOUT
            assert found == before or not in_time
            asked = now
        if in_time:
            return before


def test_a_client_stays_while_it_comes_back_in_time_and_no_longer(cluster, lab):
    config = {"clientIP": {"timeoutSeconds": SHORT_TIMEOUT}}
    # One client may get the same pod by chance after the timeout, but hardly all of these.
    specs = [with_affinity(cluster, lab.pods, sessionAffinityConfig=config) for _ in range(4)]
    asking = [
        each
        for spec in specs
        for member, version in ((lab.node("node1"), 4), (lab.pod("pod-1-1"), 6), (lab.client, 4))
        for protocol in PROTOCOLS
        for each in attempts([member], places(cluster, spec, version, inside=False), protocol)
    ]
    before = heard_in_time(asking)
    assert set().union(*before.values()) <= names(lab.pods)
    moved = set()
    for _ in range(10):
        time.sleep(SHORT_TIMEOUT + 0.2)
        for each, pods in results(asking).items():
            if pods != before[each]:
                moved.add((each[0], each[3]))
        if len(moved) == 3 * len(PROTOCOLS):
            break
    assert len(moved) == 3 * len(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_clients_of_a_pod_that_goes_move(cluster, lab, client, protocol):
    spec = with_affinity(cluster, lab.pods)
    found = places(cluster, spec, 6)
    before = {member.name: met(member, found, protocol) for member in members(cluster)}
    (gone,) = before[lab.client.name]
    cluster.serve(spec, [pod for pod in lab.pods if pod.name != gone])
    # Concurrent connections may each choose a backend.
    after = {member.name: met(member, found[:1], protocol, 1) for member in members(cluster)}
    assert all(len(pods) == 1 and pods != {gone} for pods in after.values())
    assert {member.name: met(member, found, protocol) for member in members(cluster)} == after
    assert all(after[name] == pods for name, pods in before.items() if pods != {gone})
    cluster.serve(spec, lab.pods)
    assert {member.name: met(member, found, protocol) for member in members(cluster)} == after


def meets(member: Member, place: tuple[str, int], protocol: str, most: int) -> bool:
    return len(pods_at(member, *place, protocol)) == most


def test_affinity_is_switched_off_and_on(cluster, lab, client):
    spec = with_affinity(cluster, lab.pods)
    for affinity, most in (("ClientIP", 1), ("None", len(lab.pods)), ("ClientIP", 1)):
        spec = replace(spec, spec={"sessionAffinity": affinity})
        cluster.serve(spec, lab.pods)
        for member in members(cluster):
            for protocol in PROTOCOLS:
                place = places(cluster, spec, 4)[0]
                # The client's port may belong to a UDP flow that began before affinity was set.
                wait_until(partial(meets, member, place, protocol, most), f"{most} met")


def test_unconnected_sockets_of_the_host_meet_one_pod(cluster, lab):
    spec = with_affinity(cluster, lab.pods)
    for place in cluster.cluster_ips(spec):
        seen = set()
        for _ in range(TIMES):
            with opened(lab.node("node1"), 6 if ":" in place else 4, "udp") as asking:
                seen |= {send_and_hear(asking, place, spec.port) for _ in range(2)}
        assert len(seen) == 1


@pytest.fixture(scope="module")
def without_cover(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node that does not attach to its pods' devices."""
    options = ["--workload-devices=none"]
    logs = tmp_path_factory.mktemp("without-cover")
    with started(own_lab, logs, options, nodes=["node1"]) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pods_without_tc_cover_stay_with_a_pod_each(without_cover, protocol):
    lab = without_cover.lab
    spec = with_affinity(without_cover, lab.pods)
    for version in without_cover.versions:
        found = places(without_cover, spec, version)
        for member in lab.pods_on("node1"):
            assert len(met(member, found, protocol)) == 1
    keys = [key for key, _ in pinned_maps(lab.node("node1"))["lb_affinity"].items()]
    assert {bytes(LbClientKey.from_buffer_copy(key).client)[:8].hex() for key in keys} >= BY_COOKIE


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_clients_stay_with_their_pods_over_a_restart(without_cover, end):
    lab, agent = without_cover.lab, without_cover.agents["node1"]
    spec = with_affinity(without_cover, lab.pods)
    asking = [
        each
        for version in without_cover.versions
        for protocol in PROTOCOLS
        for each in attempts(
            (lab.node("node1"), *lab.pods_on("node1"), lab.client),
            places(without_cover, spec, version, inside=False),
            protocol,
        )
    ]
    before = results(asking)
    getattr(agent, end)()
    agent.start()
    agent.wait_in_sync()
    for _ in range(3):
        assert results(asking) == before


def test_the_maps_show_who_stays_where(without_cover):
    lab, node = without_cover.lab, without_cover.lab.node("node1")
    spec = with_affinity(without_cover, [lab.pod("pod-1-1")])
    (place, *_) = places(without_cover, spec, 4)
    met(lab.client, [place], "tcp")
    shown = json.loads(ebpflb(node, "maps", "dump", "lb_affinity", "-o", "json").stdout)
    assert lab.client.ipv4 in [each["key"]["client"] for each in shown["lb_affinity"]]

# SPDX-License-Identifier: Apache-2.0
"""A Service without usable endpoints has those of its backup, and one with many connections too."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.command import ebpflb, metric
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, SILENT, Attempt, others, pods_at, results
from tests.e2e.harness.reached import assert_reached, assert_refused
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until

OWN, LENT = "pod-1-2", "pod-2-2"
MANY = 12


def serve(
    cluster: Cluster,
    spec: ServiceSpec,
    pods: Sequence[Member] = (),
    namespace: str = "default",
    **annotations: str,
) -> None:
    by_name = {name.replace("_", "-"): text for name, text in annotations.items()}
    objects = cluster.lab.service(replace(spec, annotations=by_name), pods)
    for each in objects:
        each["metadata"]["namespace"] = namespace
    cluster.write(spec, objects)


@pytest.fixture
def own(cluster: Cluster) -> Member:
    return cluster.lab.pod(OWN)


@pytest.fixture
def backup(cluster: Cluster) -> ServiceSpec:
    """A Service with one pod, on the other node."""
    return cluster.serve(cluster.new("ClusterIP"), [cluster.lab.pod(LENT)])


@pytest.fixture
def spec(cluster: Cluster, own: Member, backup: ServiceSpec) -> ServiceSpec:
    """A Service with one pod and a backup."""
    made = cluster.new()
    serve(cluster, made, [own], backup=backup.name)
    return made


def test_without_endpoints_its_connections_go_to_the_backup_and_then_home(cluster, spec, backup):
    lab = cluster.lab
    assert_reached(cluster, spec, OWN)
    serve(cluster, spec, backup=backup.name)
    assert_reached(cluster, spec, LENT)
    assert_reached(cluster, backup, LENT)
    serve(cluster, spec, [lab.pod(OWN)], backup=backup.name)
    assert_reached(cluster, spec, OWN)
    serve(cluster, spec)
    assert_refused(cluster, spec)


def test_no_connection_fails_on_the_way_there_and_back(cluster, own, spec, backup):
    """Open ones stay where they are, whichever Service's pods they have."""
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(own)
        serve(cluster, spec, backup=backup.name)
        loads.wait_for(cluster.lab.pod(LENT))
        with none_fails(cluster, spec, held=True) as later:
            later.wait_for(cluster.lab.pod(LENT))
            serve(cluster, spec, [own], backup=backup.name)
            later.wait_for(own)
            loads.go_on()
    assert {pod for each in loads.held() for pod in each.pods} == {OWN}
    assert {pod for each in later.held() for pod in each.pods} == {LENT}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_policy_local_holds_for_what_is_lent(cluster, backup, protocol):
    lab = cluster.lab
    local = cluster.new(externalTrafficPolicy="Local")
    serve(cluster, local, backup=backup.name)
    here, elsewhere = lab.nodes
    attempts = [
        Attempt(lab.client, address, local.node_port, protocol)
        for node in (here, elsewhere)
        for address in node.addresses
        if address in {node.ipv4, node.ipv6}
    ]
    found = results(attempts, seconds=1.0)
    assert others({each.key: found[each.key] for each in attempts[2:]}, LENT) == {}
    assert others({each.key: found[each.key] for each in attempts[:2]}, SILENT) == {}


def test_another_namespace_must_allow_it(cluster, own, backup):
    asking, lab = cluster.new(), cluster.lab
    serve(cluster, asking, backup=f"ops/{backup.name}")
    pods = [lab.pod(LENT)]
    cluster.remove(backup)
    for allowed in ({}, {"backup_for": "shop"}):
        serve(cluster, backup, pods, namespace="ops", **allowed)
        assert_refused(cluster, asking)
    for allowed in ({"backup_for": "shop, default"}, {"backup_for": "*"}):
        serve(cluster, backup, pods, namespace="ops", **allowed)
        assert_reached(cluster, asking, LENT)
    serve(cluster, backup, pods, namespace="ops")
    assert_refused(cluster, asking)


def test_commands_and_metrics_say_so(cluster, spec, backup):
    node = cluster.lab.node("node1")

    def explained() -> str:
        return ebpflb(node, "explain", "host", f"default/{spec.name}:tcp").stdout

    assert f"default/{backup.name}, once no endpoint of its own is usable" in explained()
    assert metric(node, "ebpflb_services_on_backup") == 0
    serve(cluster, spec, backup=backup.name)
    wait_until(lambda: metric(node, "ebpflb_services_on_backup") == 1, "the metric")
    text = explained()
    assert f"new connections go to its backup default/{backup.name}" in text
    assert "ready; of the backup" in text
    assert "Kernel and model agree" in text
    listed = ebpflb(node, "services", "--service", spec.name).stdout
    assert "Cluster, on its backup" in listed
    top = ebpflb(node, "top", "--once", "--interval", "0.1", "--service", spec.name).stdout
    assert "on its backup" in " ".join(top.split())


def use_on(cluster: Cluster, spec: ServiceSpec, node: str, protocol: str) -> set[str]:
    """How a node's frontends use the backup."""
    listed = ebpflb(cluster.lab.node(node), "services", "--service", spec.name, "-o", "json")
    found = json.loads(listed.stdout)
    return {each["backup"] for each in found if each["protocol"] == protocol.upper()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_with_many_connections_spills_over_and_others_do_not(
    cluster, own, spec, backup, protocol
):
    lab = cluster.lab
    serve(cluster, spec, [own], backup=backup.name, spill_at=str(MANY))
    with ExitStack() as stack:
        held = [
            stack.enter_context(connected(lab.pod("pod-1-1"), address, spec.port, protocol))
            for address in cluster.cluster_ips(spec)
            for _ in range(MANY // len(cluster.versions))
        ]
        assert {exchange(each) for each in held} == {OWN}
        wait_until(
            lambda: use_on(cluster, spec, "node1", protocol) == {"spill"}, "node1 spills over"
        )
        assert use_on(cluster, spec, "node2", protocol) == {"none"}
        for address in cluster.cluster_ips(spec):
            seen = pods_at(lab.node("node1"), address, spec.port, protocol)
            assert seen == {OWN, LENT}
        # Its own connections have not moved.
        assert {exchange(each) for each in held} == {OWN}
        serve(cluster, spec, [own], backup=backup.name)
        for address in cluster.cluster_ips(spec):
            assert pods_at(lab.node("node1"), address, spec.port, protocol) == {OWN}

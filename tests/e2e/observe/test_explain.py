# SPDX-License-Identifier: Apache-2.0
"""`ebpflb explain` on a node predicts what then happens there."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ebpflb.lab import LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, error_line
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, SILENT, fate, is_silent, names
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.broken import broken
from tests.e2e.steps.explained import explained, place, socket_of, source_of
from tests.e2e.steps.limited import limited, lone, vips

PORT = 80


def chances(found) -> dict[str, float]:
    return {each["address"]: each["chance"] for each in found["kernel"]["backends"]}


def refused_spec(cluster: Cluster) -> ServiceSpec:
    """A Service without endpoints."""
    return cluster.serve(cluster.new(), [])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_works_reaches_the_backends_that_were_named(cluster, lab, client, protocol):
    node, pods = lab.node("node1"), lab.pods
    spec = cluster.serve(cluster.new(), pods)
    for version in cluster.versions:
        service = lab.cluster_ip(spec.number, version)
        outside = address_of(node, version)
        for member, address, port in (
            (node, service, PORT),
            (lab.pod("pod-1-1"), service, PORT),
            (lab.client, outside, spec.node_port),
        ):
            source = source_of(member, version)
            found = explained(node, source, place(address, port, protocol), 0)
            assert found["verdict"] == "translated"
            assert set(chances(found)) == {address_of(pod, version) for pod in pods}
            assert fate(member, address, port, protocol) in names(pods)


def first_line(node: LabNode, source: str, target: str, status: int) -> str:
    """The first line of the text; asserts the exit status."""
    done = ebpflb(node, "explain", source, target, **socket_of(node))
    return done.stdout.splitlines()[0] if done.returncode == status else ""


def is_fate(attempt: Callable[[], str], wanted: str) -> bool:
    return attempt() == wanted


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (REFUSED, "refused its last connection"),
        (SILENT, "did not answer its last connection"),
    ],
)
def test_it_works_partly_while_one_of_the_endpoints_fails(cluster, lab, how, said):
    node, client, dead = lab.node("node1"), lab.pod("pod-1-1"), lab.pod("pod-2-1")
    alive = len(lab.pods) - 1
    for version in cluster.versions:
        spec = cluster.serve(cluster.new(), lab.pods)
        service = lab.cluster_ip(spec.number, version)
        question = source_of(client, version), place(service, PORT)
        assert first_line(node, *question, 0)
        with broken(dead, how):
            failing = partial(fate, client, service, PORT, seconds=0.5)
            wait_until(partial(is_fate, failing, how), "a connection to it fails")
            line = wait_until(partial(first_line, node, *question, 5), "it is told")
        named = f"default/{dead.name} ({address_of(dead, version)}) {said}"
        assert line == f"works for {alive} of {alive + 1}: {named}"
        assert explained(node, *question, 5)["outcome"] == "partly"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_an_endpoint_it_is_refused(cluster, lab, protocol):
    node, spec = lab.node("node1"), refused_spec(cluster)
    for version in cluster.versions:
        service = lab.cluster_ip(spec.number, version)
        for member in (node, lab.pod("pod-1-1")):
            target = place(service, PORT, protocol)
            found = explained(node, source_of(member, version), target, 1)
            assert (found["verdict"], found["kernel"]["reason"]) == ("refused", "no_endpoint")
            assert fate(member, service, PORT, protocol) == REFUSED


def test_local_without_a_local_endpoint_is_dropped_and_each_endpoint_says_why(cluster, lab):
    node = lab.node("node1")
    spec = cluster.serve(cluster.new(externalTrafficPolicy="Local"), lab.pods_on("node2"))
    for version in cluster.versions:
        address = address_of(node, version)
        target = place(address, spec.node_port)
        found = explained(node, source_of(lab.client, version), target, 1)
        assert (found["verdict"], found["kernel"]["reason"]) == ("dropped", "no_local_endpoint")
        assert {each["why"] for each in found["model"]["endpoints"]} == {
            "on node node2, and the policy is Local"
        }
        assert is_silent(lab.client, address, spec.node_port)
        assert explained(node, "host", target, 0)["verdict"] == "translated"


def test_a_client_outside_the_source_ranges_is_dropped(cluster, lab):
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    spec = cluster.serve(limited(cluster.new("LoadBalancer"), lone(pod)), lab.pods)
    for version, address in zip(cluster.versions, vips(cluster, spec), strict=True):
        target = place(address, PORT)
        for member in (node, lab.client):
            found = explained(node, source_of(member, version), target, 1)
            assert (found["verdict"], found["kernel"]["reason"]) == ("dropped", "source_range")
            assert is_silent(member, address, PORT)
        assert explained(node, source_of(pod, version), target, 0)["verdict"] == "translated"
        assert fate(pod, address, PORT) in names(lab.pods)


def test_an_address_without_a_service_passes(cluster, lab):
    node = lab.node("node1")
    for version in cluster.versions:
        target = place(address_of(lab.pod("pod-2-1"), version), 8080)
        found = explained(node, "host", target, 4)
        assert (found["verdict"], found["kernel"]["frontend"]) == ("passes", None)


def test_a_pod_by_its_name_reaches_itself_by_the_nodes_address(cluster, lab):
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    spec = cluster.serve(cluster.new(), [pod])
    found = explained(node, "default/pod-1-1", f"default/{spec.name}/udp", 0)
    (backend,) = found["kernel"]["backends"]
    assert (backend["hairpin"], backend["masquerade"]) == (True, node.ipv4)


def test_a_client_keeps_its_endpoint(cluster, lab):
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    spec = cluster.serve(cluster.new(sessionAffinity="ClientIP"), lab.pods)
    service = lab.cluster_ip(spec.number, 4)
    first = fate(pod, service, PORT)
    found = chances(explained(node, pod.ipv4, place(service, PORT), 0))
    assert found.pop(lab.pod(first).ipv4) == 1
    assert set(found.values()) == {0}


def test_a_kernel_that_is_not_as_wanted_is_reported(cluster, lab):
    node = lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    service = lab.cluster_ip(spec.number, 4)
    maps = pinned_maps(node)
    lost = [each for each in maps["lb_frontends"].items() if packed(service) in each[0]]
    maps["lb_frontends"].delete_batch([key for key, _ in lost])
    try:
        found = explained(node, "host", place(service, PORT), 3)
        assert found["differences"] == ["the model has this frontend, the kernel has not"]
    finally:
        maps["lb_frontends"].update_batch(lost)
    assert explained(node, "host", place(service, PORT), 0)["agree"]


def packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def test_unknown_names_are_answered_with_known_ones(cluster, lab):
    node = lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    done = ebpflb(node, "explain", "host", f"default/{spec.name}x", **socket_of(node))
    assert f"did you mean default/{spec.name}" in error_line(done)
    done = ebpflb(node, "explain", "default/pod-1-9", f"default/{spec.name}", **socket_of(node))
    assert "did you mean default/pod-1-" in error_line(done)


@pytest.fixture
def failing_agent(own_lab, tmp_path) -> Iterator[Cluster]:
    """A node whose agent may be stopped."""
    with started(own_lab, tmp_path, (), ["node1"]) as cluster:
        yield cluster


def test_without_an_agent_the_maps_alone_are_explained(failing_agent):
    lab = failing_agent.lab
    node, agent = lab.node("node1"), failing_agent.agents["node1"]
    spec = failing_agent.serve(failing_agent.new(), lab.pods)
    question = lab.pod("pod-1-1").ipv4, f"default/{spec.name}"
    os.kill(agent.pid, signal.SIGSTOP)
    hanging = explained(node, *question, 0)
    assert "the agent has not answered for" in hanging["model"]["unasked"]
    agent.kill()
    for found in (hanging, explained(node, *question, 0)):
        assert found["agree"] is None
        assert set(chances(found)) == {pod.ipv4 for pod in lab.pods}
    done = ebpflb(node, "explain", "host", f"default/{spec.name}", **socket_of(node))
    assert "Not compared with the model: no agent answers at" in done.stdout

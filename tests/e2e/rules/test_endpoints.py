# SPDX-License-Identifier: Apache-2.0
"""Endpoints that are not ready, terminate, have hints or other ports: which clients they get."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import (
    PATIENCE,
    PROTOCOLS,
    SILENCE_SECONDS,
    SILENT,
    TIMES,
    Attempt,
    names,
    others,
    results,
)
from tests.e2e.harness.reached import assert_reached, assert_refused, server, slices_of

HERE, ELSEWHERE = "pod-1-2", "pod-2-2"
OTHER_PORT = 9090

READY = {"ready": True, "serving": True, "terminating": False}
NEVER_READY = {"ready": False, "serving": False, "terminating": False}
PUBLISHED = {"ready": True, "serving": False, "terminating": False}
LOCAL = {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}

Fields = Mapping[str, Mapping[str, object]]


def serve_as(cluster: Cluster, spec: ServiceSpec, fields: Fields) -> None:
    """Serve the Service from these pods, each with fields of its endpoints."""
    lab = cluster.lab
    pods = [lab.pod(name) for name in fields]
    own = {address: fields[pod.name] for pod in pods for address in pod.addresses}
    objects = lab.service(spec, pods)
    for each in slices_of(objects):
        for endpoint in each["endpoints"]:
            endpoint |= own[endpoint["addresses"][0]]
    cluster.write(spec, objects)


def test_unready_endpoints_are_refused_and_published_ones_are_served(cluster):
    spec = cluster.new()
    for conditions in (NEVER_READY, PUBLISHED):
        for terminating in (False, True):
            ends = {"conditions": conditions | {"terminating": terminating}}
            serve_as(cluster, spec, {ELSEWHERE: ends})
            if conditions["ready"]:
                assert_reached(cluster, spec, ELSEWHERE)
            else:
                assert_refused(cluster, spec)


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_terminating_endpoints_alone_serve_as_the_policies_say(cluster, lab, policy, protocol):
    policies = dict.fromkeys(LOCAL, policy)
    spec = cluster.serve(cluster.new(**policies), terminating=[lab.pod(HERE)])
    expected = HERE if policy == "Cluster" else SILENT
    wanted: dict[str, list[Attempt]] = {HERE: [], expected: []}
    for version in cluster.versions:
        service = (lab.cluster_ip(spec.number, version), spec.port)
        here, elsewhere = ((address_of(node, version), spec.node_port) for node in lab.nodes)
        for place, name, server_name in (
            (service, "pod-1-1", HERE),
            (service, "node1", HERE),
            (service, "pod-2-1", expected),
            (service, "node2", expected),
            (here, "pod-1-1", HERE),
            (here, "pod-2-1", HERE),
            (elsewhere, "pod-1-1", expected),
            (elsewhere, "client", expected),
        ):
            wanted[server_name].append(Attempt(lab.member(name), place[0], place[1], protocol))
    for answer, attempts in wanted.items():
        seconds = SILENCE_SECONDS if answer == SILENT else PATIENCE
        assert others(results(attempts, seconds=seconds), answer) == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_hints_keep_clients_in_their_zone_or_on_their_node(cluster, lab, protocol):
    by_zone = {
        HERE: {"hints": {"forZones": [{"name": "zone-a"}]}},
        ELSEWHERE: {"hints": {"forZones": [{"name": "zone-b"}]}},
    }
    by_node = {
        HERE: {"hints": {"forNodes": [{"name": "node1"}]}},
        ELSEWHERE: {"hints": {"forNodes": [{"name": "node2"}]}},
    }
    spec = cluster.new()
    for hints in (by_zone, by_node):
        for pods in ([HERE, ELSEWHERE], [ELSEWHERE], [HERE, ELSEWHERE]):
            # A UDP flow from the same source port would keep a serving backend.
            spec = cluster.new() if protocol == "udp" else spec
            serve_as(cluster, spec, {pod: hints[pod] for pod in pods})
            for name, chosen in (("pod-1-1", HERE), ("node2", ELSEWHERE), ("client", HERE)):
                attempts = []
                for version in cluster.versions:
                    place = (lab.cluster_ip(spec.number, version), spec.port)
                    if name == "client":
                        place = (address_of(lab.node("node1"), version), spec.node_port)
                    attempts.append(Attempt(lab.member(name), *place, protocol))
                expected = chosen if chosen in pods else ELSEWHERE
                assert others(results(attempts, times=TIMES), expected) == {}


def test_endpoints_may_have_different_numbers_for_one_port(cluster, lab):
    pods = [lab.pod(HERE), lab.pod(ELSEWHERE)]
    spec = cluster.new()
    own, other = lab.service(spec, pods[:1]), slices_of(lab.service(spec, pods[1:]))
    for each in other:
        each["metadata"]["name"] += "-other"
        each["ports"] = [port | {"port": OTHER_PORT} for port in each["ports"]]
    with server(pods[1], "other", OTHER_PORT):
        for objects, expected in (
            (own, [HERE]),
            ([*own, *other], [HERE, "other"]),
            ([own[0], *other], ["other"]),
        ):
            cluster.write(spec, objects)
            assert_reached(cluster, spec, *expected)


def test_the_external_policy_changes_there_and_back(cluster, lab):
    pods = [lab.pod(HERE)]
    spec = cluster.new("LoadBalancer")
    for policy in ("Local", "Cluster", "Local"):
        changed = cluster.serve(replace(spec, spec={"externalTrafficPolicy": policy}), pods)
        here, elsewhere = (
            [
                Attempt(lab.client, address_of(node, version), changed.node_port, protocol)
                for version in cluster.versions
                for protocol in PROTOCOLS
            ]
            for node in lab.nodes
        )
        itself = [each._replace(member=lab.node("node2")) for each in elsewhere]
        expected = HERE if policy == "Cluster" else SILENT
        assert others(results([*here, *itself]), HERE) == {}
        seconds = SILENCE_SECONDS if expected == SILENT else PATIENCE
        assert others(results(elsewhere, seconds=seconds), expected) == {}


def test_pods_are_replaced_one_by_one_with_external_policy_local(cluster, lab):
    old, new = lab.pod("pod-1-1"), lab.pod("pod-1-2")
    spec = cluster.serve(cluster.new(externalTrafficPolicy="Local"), [old])
    with none_fails(cluster, spec) as loads:
        for one, other in ((old, new), (new, old)):
            loads.wait_for(one)
            cluster.serve(spec, [other], terminating=[one])
            loads.wait_for(other)
            cluster.serve(spec, [other])
            loads.wait_for(other)
    assert all(set(each.pods) == names([old, new]) for each in loads.results.values())


def test_two_versions_change_places_without_a_failure(cluster, lab):
    spec = cluster.new()
    colours = [HERE, ELSEWHERE]
    is_not_ready = {"conditions": {"ready": False, "serving": False, "terminating": False}}
    serve_as(cluster, spec, {HERE: {}, ELSEWHERE: is_not_ready})
    with none_fails(cluster, spec) as loads:
        for ready, waiting in (colours[::-1], colours, colours[::-1]):
            serve_as(cluster, spec, {ready: {}, waiting: {}})
            serve_as(cluster, spec, {ready: {}, waiting: is_not_ready})
            loads.wait_for(lab.pod(ready))
            assert_reached(cluster, spec, ready)


def test_an_evicted_pod_is_refused(cluster, lab):
    spec = cluster.serve(cluster.new(), [lab.pod(HERE)])
    assert_reached(cluster, spec, HERE)
    gone = {"conditions": {"ready": False, "serving": False, "terminating": True}}
    serve_as(cluster, spec, {HERE: gone})
    assert_refused(cluster, spec)

# SPDX-License-Identifier: Apache-2.0
"""Services that change: types, labels, ports, as Kubernetes' own tests change them."""

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, fate, is_silent
from tests.e2e.harness.reached import Objects, assert_reached, assert_refused, is_gone, slices_of
from tests.e2e.harness.sockets import connected, exchange

FIRST, SECOND = "pod-1-2", "pod-2-2"
OTHER_PORT = 8181
ANOTHER_PROXY = {"service.kubernetes.io/service-proxy-name": ""}
HEADLESS = {"service.kubernetes.io/headless": ""}


@pytest.fixture
def pods(lab):
    return [lab.pod(FIRST), lab.pod(SECOND)]


def changed(objects: Objects, change: Callable[[dict[str, Any]], None]) -> Objects:
    """A copy with a changed Service."""
    made = deepcopy(objects)
    change(made[0])
    return made


def test_backends_come_and_go_one_by_one(cluster, pods):
    spec = cluster.new()
    for count in (0, 1, 2, 1, 0):
        cluster.serve(spec, pods[:count])
        if count:
            assert_reached(cluster, spec, *(pod.name for pod in pods[:count]))
        else:
            assert_refused(cluster, spec)


def test_the_label_that_leaves_a_service_to_others_is_set_and_removed(cluster, lab, pods):
    spec = cluster.serve(cluster.new("LoadBalancer"), pods)
    objects = lab.service(spec, pods)
    labelled = changed(objects, lambda service: service["metadata"].update(labels=ANOTHER_PROXY))
    for _ in range(2):
        assert_reached(cluster, spec, FIRST, SECOND)
        cluster.write(spec, labelled)
        assert is_gone(cluster, spec)
        cluster.write(spec, objects)
    assert_reached(cluster, spec, FIRST, SECOND)


def test_a_service_becomes_an_external_name_and_back(cluster, lab, pods):
    spec = cluster.serve(cluster.new(), pods)
    objects = lab.service(spec, pods)
    name = {"type": "ExternalName", "externalName": "web.example"}
    cluster.write(spec, changed(objects, lambda service: service["spec"].update(name)))
    assert is_gone(cluster, spec)
    cluster.write(spec, objects)
    assert_reached(cluster, spec, FIRST, SECOND)


def test_a_slice_that_becomes_headless_serves_no_more(cluster, lab, pods):
    spec = cluster.serve(cluster.new(), pods)
    objects = lab.service(spec, pods)
    for each in slices_of(objects):
        each["metadata"]["labels"] |= HEADLESS
    cluster.write(spec, objects)
    assert_refused(cluster, spec)
    cluster.serve(spec, pods)
    assert_reached(cluster, spec, FIRST, SECOND)


def test_a_service_changes_its_type_and_ports(cluster, lab, pods):
    internal = cluster.serve(cluster.new("ClusterIP"), pods)
    assert_reached(cluster, internal, FIRST, SECOND)
    node_port = replace(internal, kind="NodePort", node_port=31990)
    balancer = replace(node_port, kind="LoadBalancer")
    moved = replace(balancer, node_port=31991)
    other_port = replace(moved, port=81)
    for spec in (node_port, balancer, moved, other_port):
        cluster.serve(spec, pods)
        assert_reached(cluster, spec, FIRST, SECOND)
    assert fate(lab.client, lab.node("node1").ipv4, node_port.node_port) == REFUSED
    assert fate(lab.pod("pod-1-1"), lab.cluster_ip(moved.number, 4), moved.port) == REFUSED
    cluster.serve(other_port)
    assert_refused(cluster, other_port)
    cluster.serve(other_port, pods[:1])
    assert_reached(cluster, other_port, FIRST)
    cluster.serve(internal, pods[:1])
    assert_reached(cluster, internal, FIRST)
    for version in cluster.versions:
        assert is_silent(lab.client, lab.ingress_ip(internal.number, version), 81)
        place = (address_of(lab.node("node1"), version), moved.node_port)
        assert fate(lab.client, *place) == REFUSED


def test_one_number_under_two_protocols_is_two_frontends(cluster, lab, pods):
    spec = cluster.new()
    objects = lab.service(spec, pods)
    for served in (("tcp",), ("udp",), PROTOCOLS):
        ports = [each for each in objects[0]["spec"]["ports"] if each["name"] in served]
        service = objects[0] | {"spec": objects[0]["spec"] | {"ports": ports}}
        cluster.write(spec, [service, *objects[1:]])
        assert_reached(cluster, spec, FIRST, SECOND, protocols=served)
        assert_refused(cluster, spec, tuple(each for each in PROTOCOLS if each not in served))


@pytest.mark.parametrize("second", [FIRST, SECOND], ids=["same pod", "other pod"])
def test_each_port_leads_to_pods_of_its_own(cluster, lab, pods, second):
    spec = cluster.new("ClusterIP")
    besides = replace(spec, port=OTHER_PORT)
    one = lab.service(spec, pods[:1])
    both = [*one, *slices_of(lab.service(besides, [lab.pod(second)]))]
    for each in both[len(one) :]:
        each["metadata"]["name"] += "-2"
        each["ports"] = [port | {"name": port["name"] + "-2"} for port in each["ports"]]
    ports = lab.service(besides, [])[0]["spec"]["ports"]
    both[0] = deepcopy(one[0])
    both[0]["spec"]["ports"] += [port | {"name": port["name"] + "-2"} for port in ports]
    for _ in range(2):
        cluster.write(spec, both)
        assert_reached(cluster, spec, FIRST)
        assert_reached(cluster, besides, second)
        cluster.write(spec, one)
        assert_reached(cluster, spec, FIRST)
        assert_refused(cluster, besides)


def test_a_deleted_service_is_dead_and_others_are_not(cluster, pods):
    gone, stays = (cluster.serve(cluster.new("LoadBalancer"), pods) for _ in range(2))
    for spec in (gone, stays):
        assert_reached(cluster, spec, FIRST, SECOND)
    cluster.remove(gone)
    assert is_gone(cluster, gone)
    comes = cluster.serve(cluster.new("LoadBalancer"), pods)
    for spec in (stays, comes):
        assert_reached(cluster, spec, FIRST, SECOND)


def test_a_service_that_is_recreated_has_another_address_and_the_same_pods(cluster, pods):
    old = cluster.serve(cluster.new("ClusterIP"), pods)
    cluster.remove(old)
    new = replace(cluster.new("ClusterIP"), name=old.name)
    cluster.serve(new, pods)
    assert_reached(cluster, new, FIRST, SECOND)
    assert is_gone(cluster, old)


def test_a_load_balancer_needs_no_node_port(cluster, pods):
    later = cluster.new("LoadBalancer")
    for spec in (replace(later, node_port=0), later):
        cluster.serve(spec, pods)
        assert_reached(cluster, spec, FIRST, SECOND)


@pytest.mark.parametrize("version", [4, 6])
def test_connections_outlive_a_change_of_policy_and_port(cluster, lab, pods, version):
    spec = cluster.serve(cluster.new(), pods)
    service = (lab.cluster_ip(spec.number, version), spec.port)
    outside = (address_of(lab.node("node1"), version), spec.node_port)
    ways = [(lab.pod("pod-1-1"), service), (lab.node("node1"), service), (lab.client, outside)]
    with ExitStack() as stack:
        many = [stack.enter_context(connected(who, *place)) for who, place in ways * 6]
        before = [exchange(each) for each in many]
        assert set(before) == {FIRST, SECOND}
        local = {"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}
        for change in ({"spec": local}, {"port": 81}, {"node_port": 31992}):
            spec = replace(spec, **change)
            cluster.serve(spec, pods)
            assert [exchange(each) for each in many] == before
        assert fate(ways[0][0], *service) == REFUSED
        cluster.serve(spec, pods, target_port=OTHER_PORT)
        assert [exchange(each) for each in many] == before

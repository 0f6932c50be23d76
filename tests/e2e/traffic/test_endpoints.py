# SPDX-License-Identifier: Apache-2.0
"""Endpoints are added, terminate and disappear: no client notices, unless none is left."""

from contextlib import ExitStack

import pytest

from tests.e2e.harness.cluster import address_of, stopped
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import (
    AT_ONCE,
    PATIENCE,
    PROTOCOLS,
    REFUSED,
    fate,
    is_silent,
    names,
    node_ports,
    pods_at,
)
from tests.e2e.harness.sockets import connected, exchange, opened, send_and_hear

PORT = 80


def test_a_backend_is_added_and_another_one_ends_under_load(cluster, lab):
    first, second, third = lab.pod("pod-1-1"), lab.pod("pod-1-2"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first, second])
    with none_fails(cluster, spec) as loads, ExitStack() as ended:
        loads.wait_for(second)
        cluster.serve(spec, [first, second, third])
        loads.wait_for(third)
        cluster.serve(spec, [first, third], terminating=[second])
        loads.wait_for(third)
        ended.enter_context(stopped(lab, second))
        cluster.serve(spec, [first, third])
        loads.wait_for(third)
    assert all(set(each.pods) == names([first, second, third]) for each in loads.results.values())


def test_a_held_connection_outlives_the_end_of_its_backend_as_an_endpoint(cluster, lab):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first, second])
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(second)
        cluster.serve(spec, [first], terminating=[second])
        loads.wait_for(first)
        cluster.serve(spec, [first])
        loads.wait_for(first)
    assert all(set(each.pods) == names([first, second]) for each in loads.held())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_endpoints_everybody_is_refused_at_once(cluster, lab, client, protocol):
    spec = cluster.serve(cluster.new(), [])
    places = [(address, PORT) for address in cluster.cluster_ips(spec)]
    places += [(address, spec.node_port) for address in node_ports(cluster, spec)]
    for place in places:
        for member in (lab.pod("pod-1-1"), lab.node("node1")):
            assert fate(member, *place, protocol, AT_ONCE) == REFUSED, (member.name, place)
        assert fate(client, *place, protocol, PATIENCE) == REFUSED, place


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_endpoints_that_come_back_are_served_at_once(cluster, lab, client, protocol):
    pods = [lab.pod("pod-1-2"), lab.pod("pod-2-1")]
    spec = cluster.serve(cluster.new(), pods)
    cluster.serve(spec, [])
    cluster.serve(spec, pods)
    for place in cluster.cluster_ips(spec):
        for member in (lab.pod("pod-1-1"), lab.node("node1"), client):
            assert pods_at(member, place, PORT, protocol) == names(pods), (member.name, place)
    for place in node_ports(cluster, spec):
        assert pods_at(client, place, spec.node_port, protocol) == names(pods)


@pytest.mark.parametrize("pod", ["pod-1-2", "pod-2-1"])
@pytest.mark.parametrize("version", [4, 6])
def test_a_deleted_service_cuts_no_connection(cluster, lab, client, pod, version):
    spec = cluster.serve(cluster.new(), [lab.pod(pod)])
    service = (lab.cluster_ip(spec.number, version), PORT)
    outside = (address_of(lab.node("node1"), version), spec.node_port)
    ways = [(client, outside), (client, service), (lab.pod("pod-1-1"), service)]
    with ExitStack() as stack:
        held = [stack.enter_context(connected(member, *place)) for member, place in ways]
        assert [exchange(each) for each in held] == [pod] * len(ways)
        cluster.remove(spec)
        # Its slots are reused by others.
        cluster.serve(cluster.new(), lab.pods)
        assert is_silent(client, *service)
        assert [exchange(each) for each in held for _ in range(10)] == [pod] * 10 * len(ways)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("source", ["pod-1-1", "node1", "client"])
def test_an_unconnected_udp_socket_keeps_its_backend_until_that_goes(
    cluster, lab, client, source, version
):
    pods = [lab.pod("pod-1-2"), lab.pod("pod-2-1"), lab.pod("pod-2-2")]
    spec = cluster.serve(cluster.new(), pods)
    place = (lab.cluster_ip(spec.number, version), PORT)
    with opened(lab.member(source), version, "udp") as udp:
        (chosen,) = {send_and_hear(udp, *place) for _ in range(30)}
        others = [pod for pod in pods if pod.name != chosen]
        cluster.serve(spec, others, terminating=[lab.pod(chosen)])
        cluster.serve(spec, others)
        with stopped(lab, lab.pod(chosen)):
            (moved,) = {send_and_hear(udp, *place) for _ in range(30)}
        assert moved in names(others)


def test_terminating_endpoints_serve_while_there_are_no_others(cluster, lab, client):
    ending = [lab.pod("pod-1-1"), lab.pod("pod-2-1")]
    spec = cluster.serve(cluster.new(), [lab.pod("pod-1-2")], terminating=ending)
    (*_, place) = node_ports(cluster, spec)
    assert pods_at(client, place, spec.node_port) == {"pod-1-2"}
    cluster.serve(spec, [], terminating=ending)
    assert pods_at(client, place, spec.node_port) == names(ending)
    for place in cluster.cluster_ips(spec):
        for member in (lab.pod("pod-1-2"), lab.node("node1")):
            assert pods_at(member, place, PORT) == names(ending)

# SPDX-License-Identifier: Apache-2.0
"""Schedulers of Services: which pod is next, and that changing them costs no connection."""

import json
import socket
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from ebpflb.dataplane.layout.records import pack_index, unpack_open
from ebpflb.dataplane.view.snapshot import SnapshotReader
from ebpflb.lab import LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.address import Protocol
from ebpflb.words.scheduler import Scheduler
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, answers
from tests.e2e.harness.sockets import connected, exchange, opened, version_of
from tests.e2e.harness.waiting import wait_until, wait_until_equal

TIMES = 24


def schedule(cluster: Cluster, spec: ServiceSpec, scheduler: str) -> None:
    """Annotate the Service; return when that is in force on all nodes."""
    cluster.serve(replace(spec, annotations={"scheduler": str(scheduler)}), cluster.lab.pods)


def scheduled(cluster: Cluster, scheduler: str) -> ServiceSpec:
    """A Service with this scheduler in front of all pods."""
    spec = cluster.new()
    schedule(cluster, spec, scheduler)
    return spec


def asked(member: Member, address: str, port: int, protocol: str) -> list[str]:
    """The pods that reply to consecutive connections."""
    return [each["pod"] for each in answers(member, address, port, protocol, TIMES)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pods_answer_in_turn(cluster: Cluster, lab, protocol):
    spec = scheduled(cluster, "round-robin")
    for way in cluster.ways(spec):
        pods = asked(*way, protocol)
        assert set(Counter(pods).values()) == {TIMES // len(lab.pods)}
        assert all(one != other for one, other in pairwise(pods)), way


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_source_hash_keeps_a_client_at_its_pod(cluster: Cluster, lab, protocol):
    spec = scheduled(cluster, "source-hash")
    for way in cluster.ways(spec):
        assert len(set(asked(*way, protocol))) == 1, way


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_maglev_all_nodes_choose_one_pod_for_a_clients_port(cluster, lab, protocol):
    spec = scheduled(cluster, "maglev")
    for version in cluster.versions:
        places = [(address_of(node, version), spec.node_port) for node in lab.nodes]
        at_nodes = [
            [met_from(lab.client, port, place, protocol) for port in range(20000, 20024)]
            for place in places
        ]
        assert at_nodes[0] == at_nodes[1]
        assert len(set(at_nodes[0])) > 1


def met_from(client: Member, port: int, place: tuple[str, int], protocol: str) -> str:
    """The pod that replies to a client's port."""
    with opened(client, version_of(place[0]), protocol) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("", port))
        made.connect(place)
        return exchange(made)


def had_most(pods: list[str]) -> bool:
    """Whether the pod of the last connection already had more connections than any other.

    Of two candidates the one with fewer is taken, so this pod never is.
    """
    *before, last = pods
    counts = Counter(before)
    return all(counts[last] > counts[other] for other in counts if other != last) and last in counts


def test_open_connections_are_counted_and_the_fullest_pod_gets_none(cluster, lab):
    spec = scheduled(cluster, "least-connections")
    node = lab.node("node1")
    for member, address, port in cluster.ways(spec):
        wait_until(lambda: not any(open_connections(node, spec)), "no connection is open")
        with ExitStack() as held:
            pods: list[str] = []
            for _ in range(24):
                pods.append(exchange(held.enter_context(connected(member, address, port))))
                assert not had_most(pods), pods
            wait_until_equal(lambda: sum(open_connections(node, spec)), 24)


def open_connections(node: LabNode, spec: ServiceSpec) -> list[int]:
    """Of each backend of the Service."""
    maps = pinned_maps(node)
    groups = SnapshotReader().read(maps).backends
    return [
        unpack_open(maps["lb_open"].lookup(pack_index(each.map_index)) or b"")
        for name, group in groups.items()
        for each in group
        if name.service == spec.name and name.protocol is Protocol.TCP and each.usable
    ]


def test_explain_says_whom_a_hash_leads_to(cluster, lab):
    spec = scheduled(cluster, "maglev")
    node = lab.node("node1")
    by_address = {address: pod.name for pod in lab.pods for address in pod.addresses}
    for port in range(20020, 20024):
        source, target = f"{lab.client.ipv4}:{port}", f"{node.ipv4}:{spec.node_port}"
        found = json.loads(ebpflb(node, "explain", source, target, "-o", "json").stdout)
        (sure,) = [each for each in found["kernel"]["backends"] if each["chance"] == 1]
        place = node.ipv4, spec.node_port
        assert by_address[sure["address"]] == met_from(lab.client, port, place, "tcp")


def test_a_change_of_the_scheduler_costs_no_connection(cluster):
    spec = scheduled(cluster, "random")
    with none_fails(cluster, spec, held=True):
        for scheduler in (*Scheduler, *reversed(Scheduler)):
            schedule(cluster, spec, scheduler)


def test_a_scheduler_that_does_not_exist_leaves_the_service_as_it_is(cluster, lab):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    with none_fails(cluster, spec):
        schedule(cluster, spec, "wlc")
    assert "ebpflb.io/scheduler: must be one of" in "".join(misconfigured(node))
    wait_until_equal(partial(metric, node, "ebpflb_services_misconfigured"), 1)
    schedule(cluster, spec, "round-robin")
    wait_until_equal(partial(misconfigured, node), [])


def misconfigured(node: LabNode) -> list[str]:
    """The Services that the status reports as misconfigured."""
    found: list[str] = status(node)["agent"]["misconfigured"]
    return found


@pytest.mark.parametrize("scheduler", [each for each in Scheduler if each != Scheduler.RANDOM])
def test_tools_name_the_scheduler(cluster, lab, scheduler):
    spec = scheduled(cluster, scheduler)
    node = lab.node("node1")
    dumped = ebpflb(node, "maps", "dump", "--service", f"default/{spec.name}").stdout
    assert f"Cluster, {scheduler}" in dumped
    place = f"{lab.cluster_ip(spec.number, 4)}:{spec.port}"
    explained = ebpflb(node, "explain", "host", place).stdout
    assert scheduler in explained

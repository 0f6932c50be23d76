# SPDX-License-Identifier: Apache-2.0
"""Unconnected UDP sockets of the host: answers come from where the socket sent to, and a socket
that is closed leaves nothing.
"""

import socket
from collections.abc import Iterator

import pytest

from ebpflb.dataplane.layout.structs import LbSocketKey
from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.sockets import opened

VERSIONS = pytest.mark.parametrize("version", [4, 6])
SO_COOKIE = 57
CLIENTS = 20

Place = tuple[str, int]


@pytest.fixture
def asking(lab, version) -> Iterator[socket.socket]:
    with opened(lab.node("node1"), version, "udp") as made:
        yield made


def answered_by(asking: socket.socket, place: Place) -> Place:
    """Where the answer to a question comes from."""
    asking.sendto(b"\n", place)
    _, peer = asking.recvfrom(1000)
    return str(peer[0]), int(peer[1])


@VERSIONS
@pytest.mark.parametrize("where", ["pod-1-1", "pod-2-1"])
def test_two_services_with_one_endpoint_answer_for_themselves(
    cluster, lab, asking, where, version
):
    pod = lab.pod(where)
    specs = [cluster.serve(cluster.new(), [pod]) for _ in range(2)]
    one, two = ((lab.cluster_ip(spec.number, version), spec.port) for spec in specs)
    for place in (one, two, one, one, two):
        assert answered_by(asking, place) == place


@VERSIONS
@pytest.mark.parametrize("where", ["pod-1-1", "pod-2-1"])
def test_a_service_and_the_pod_behind_it_answer_for_themselves(
    cluster, lab, asking, where, version
):
    pod = lab.pod(where)
    spec = cluster.serve(cluster.new(), [pod])
    service = lab.cluster_ip(spec.number, version), spec.port
    directly = address_of(pod, version), lab.config.port
    for place in (service, directly, service, directly, directly, service):
        assert answered_by(asking, place) == place


def cookies_of(node: LabNode) -> set[int]:
    """The sockets that the node has entries of."""
    keys = (key for key, _ in pinned_maps(node)["lb_sockets"].items())
    return {int(LbSocketKey.from_buffer_copy(key).cookie) for key in keys}


@VERSIONS
def test_sockets_that_ask_once_leave_nothing(cluster, lab, version):
    node = lab.node("node1")
    spec = cluster.serve(cluster.new(), [lab.pod("pod-1-1")])
    place = lab.cluster_ip(spec.number, version), spec.port
    made = set()
    for _ in range(CLIENTS):
        with opened(node, version, "udp") as asking:
            cookie = asking.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
            made.add(int.from_bytes(cookie, "little"))
            assert answered_by(asking, place) == place
            assert made & cookies_of(node)
    assert not made & cookies_of(node)

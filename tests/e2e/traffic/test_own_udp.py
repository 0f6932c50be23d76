# SPDX-License-Identifier: Apache-2.0
"""UDP from the node's own sockets: a process bound to a Service's port gets its replies while the
Service keeps its requests; replies come from the address that the socket sent to; and a closed
socket leaves no entries.
"""

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebpflb.dataplane.layout.structs import LbSocketKey, LbTuple
from ebpflb.lab import LabNode, Member
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import names, pods_at
from tests.e2e.harness.sockets import opened

SERVER_PORT = 5005
SO_COOKIE = 57
CLIENTS = 20
VERSIONS = pytest.mark.parametrize("version", [4, 6])

Place = tuple[str, int]

_MASQUERADE = """
add table inet cni
add chain inet cni out {{ type nat hook postrouting priority 100; }}
add rule inet cni out {family} saddr {pod} udp dport {port} snat {family} to {address}
"""


@contextmanager
def server(member: Member, version: int) -> Iterator[socket.socket]:
    """A socket that receives requests."""
    with opened(member, version, "udp") as made:
        made.bind(("", SERVER_PORT))
        yield made


def answered(
    asking: socket.socket, asked: socket.socket, place: tuple[str, int]
) -> tuple[str, int]:
    """One exchange, and the client's address as the other side sees it."""
    for text in (b"one", b"two"):
        asking.sendto(text, place)
        received, peer = asked.recvfrom(10)
        asked.sendto(received, peer)
        assert asking.recvfrom(10)[0] == text
    return str(peer[0]), int(peer[1])


@VERSIONS
@pytest.mark.parametrize(
    ("who", "kind"),
    [
        *itertools.product(("client", "pod-1-1", "pod-2-1"), ("NodePort",)),
        *itertools.product(("client", "pod-1-1"), ("external IP",)),
    ],
)
def test_an_unconnected_socket_of_the_host_hears_whom_it_asks(cluster, lab, who, kind, version):
    node, member = lab.node("node1"), lab.member(who)
    if kind == "NodePort":
        port = cluster.serve(cluster.new(), lab.pods).node_port
    else:
        external = [address_of(node, each) for each in (4, 6)]
        port = cluster.serve(cluster.new("ClusterIP", externalIPs=external), lab.pods).port
    own = (address_of(node, version), port)
    with server(member, version) as asked, opened(node, version, "udp") as asking:
        asking.bind(own)
        peer = answered(asking, asked, (address_of(member, version), SERVER_PORT))
        assert peer == own
        assert pods_at(lab.client, *own, "udp") == names(lab.pods)


@pytest.fixture
def masqueraded(lab, version) -> Iterator[int]:
    """Requests of pod-1-1 leave from this port of node1."""
    node, family = lab.node("node1"), "ip" if version == 4 else "ip6"
    port = 31999
    address = address_of(node, version)
    end = f"{address}:{port}" if version == 4 else f"[{address}]:{port}"
    pod = address_of(lab.pod("pod-1-1"), version)
    rules = _MASQUERADE.format(family=family, pod=pod, port=SERVER_PORT, address=end)
    node.exec(["nft", rules])
    yield port
    node.exec(["nft", "delete table inet cni"])


@VERSIONS
def test_a_pod_that_is_masqueraded_to_a_node_port_hears_whom_it_asks(
    cluster, lab, client, masqueraded, version
):
    spec = cluster.new()
    spec = cluster.serve(type(spec)(spec.name, spec.number, spec.kind, node_port=masqueraded))
    spec = cluster.serve(spec, [lab.pod("pod-2-1")])
    own = (address_of(lab.node("node1"), version), masqueraded)
    with server(client, version) as asked, opened(lab.pod("pod-1-1"), version, "udp") as asking:
        peer = answered(asking, asked, (address_of(client, version), SERVER_PORT))
        assert peer == own
        assert pods_at(client, *own, "udp") == {"pod-2-1"}


def forget_requests(node: LabNode, port: int) -> None:
    """As a full table may: drop the flows of this NodePort's clients, but not those of replies."""
    flows = pinned_maps(node)["lb_ct_udp"]
    keys = [key for key, _ in flows.items() if LbTuple.from_buffer_copy(key).dport == port]
    assert keys
    flows.delete_batch(keys)


@VERSIONS
def test_answers_of_the_node_port_keep_no_client_from_it(cluster, lab, client, version):
    pod, node = lab.pod("pod-2-1"), lab.node("node1")
    spec = cluster.serve(cluster.new(), [pod], target_port=SERVER_PORT)
    place = (address_of(node, version), spec.node_port)
    with server(pod, version) as asked, opened(client, version, "udp") as asking:
        asking.connect(place)
        asking.send(b"one")
        _, peer = asked.recvfrom(10)
        forget_requests(node, spec.node_port)
        asked.sendto(b"answer", peer)
        assert asking.recv(10) == b"answer"
        asking.send(b"two")
        assert asked.recv(10) == b"two"


# Unconnected sockets of the host that send requests


@pytest.fixture
def asking(lab, version) -> Iterator[socket.socket]:
    with opened(lab.node("node1"), version, "udp") as made:
        yield made


def answered_by(asking: socket.socket, place: Place) -> Place:
    """The source address of the reply to a request."""
    asking.sendto(b"\n", place)
    _, peer = asking.recvfrom(1000)
    return str(peer[0]), int(peer[1])


@VERSIONS
@pytest.mark.parametrize("where", ["pod-1-1", "pod-2-1"])
def test_two_services_with_one_endpoint_answer_for_themselves(cluster, lab, asking, where, version):
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
    """The sockets for which the node has entries."""
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

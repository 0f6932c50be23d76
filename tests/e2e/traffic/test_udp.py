# SPDX-License-Identifier: Apache-2.0
"""UDP clients that keep their source port follow the serving endpoints, and no others."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from ebpflb.lab import Member
from tests.e2e.harness.cluster import Cluster, address_of, stopped
from tests.e2e.harness.command import metric, status
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.sockets import connected, exchange, opened, send_and_hear
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.udp_ends import PATIENCE, PAUSE, PORT, ends

SOURCE_PORT = 20000
# As in kube-proxy's own tests.
MOVED_WITHIN = 60.0
LOOKED_AFTER = 'kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"}'
PODS = ("pod-1-1", "pod-2-1")
VERSIONS = pytest.mark.parametrize("version", [4, 6])
ORDERS = pytest.mark.parametrize("pods", [PODS, PODS[::-1]], ids=["to remote", "to local"])
# The client, and the address: a ClusterIP, or the NodePort of a node.
WAYS = (
    ("pod-1-2", "ClusterIP"),
    ("node1", "ClusterIP"),
    ("client", "ClusterIP"),
    ("pod-1-2", "node1"),
    ("pod-1-2", "node2"),
    ("node1", "node1"),
    ("client", "node1"),
)
NOBODY = {"ConnectionRefusedError", "TimeoutError"}
ANSWER = """
import socket, sys
server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("", int(sys.argv[1])))
print("other", flush=True)
while True:
    _, client = server.recvfrom(100)
    server.sendto(b"other", client)
"""


class Client:
    """One socket on one source port, unconnected."""

    def __init__(self, made: socket.socket, port: int, place: tuple[str, int]) -> None:
        self._made, self._place = made, place
        self._owed = False
        made.bind(("", port))

    def hear(self, seconds: float = PATIENCE) -> str:
        """The pod that replies to a datagram, or the error."""
        self._made.settimeout(seconds)
        try:
            return send_and_hear(self._made, *self._place)
        except OSError as error:
            self._owed |= isinstance(error, TimeoutError)
            return type(error).__name__

    def waits_for(self, name: str) -> bool:
        """Send until this pod replies, and check that it continues to."""
        deadline = time.monotonic() + MOVED_WITHIN
        while self.hear(PAUSE) != name and time.monotonic() < deadline:
            time.sleep(PAUSE)
        if self._owed:
            self._forget()
        return [self.hear() for _ in range(3)] == [name] * 3

    def _forget(self) -> None:
        """Discard late replies."""
        self._made.settimeout(PAUSE)
        with suppress(TimeoutError):
            while True:
                self._made.recv(100)
        self._owed = False


class Clients:
    """One client on each path, of every family."""

    def __init__(self, clients: dict[str, Client]) -> None:
        self._clients = clients

    def follow(self, name: str) -> None:
        """All of them soon get replies from this pod, and then from no other."""
        assert [way for way, each in self._clients.items() if not each.waits_for(name)] == []

    def hear(self, seconds: float = PATIENCE) -> set[str]:
        """The result of each, once."""
        return {each.hear(seconds) for each in self._clients.values()}


@contextmanager
def clients_of(cluster: Cluster, spec, ways: Sequence[tuple[str, str]] = WAYS) -> Iterator[Clients]:
    lab = cluster.lab
    found: dict[str, Client] = {}
    with ExitStack() as stack:
        for source, target in ways:
            for version in cluster.versions:
                place = (lab.cluster_ip(spec.number, version), PORT)
                if target != "ClusterIP":
                    place = (address_of(lab.node(target), version), spec.node_port)
                made = stack.enter_context(opened(lab.member(source), version, "udp"))
                name = f"{source} to {target}, IPv{version}"
                found[name] = Client(made, SOURCE_PORT + len(found), place)
        yield Clients(found)


def change_slices(cluster: Cluster, spec, pods: list[Member], **fields) -> None:
    """Serve with other fields of the slices, or of their endpoints."""
    objects = cluster.lab.service(spec, pods)
    for item in (each for each in objects if each["kind"] == "EndpointSlice"):
        if "port" in fields:
            for port in item["ports"]:
                port["port"] = fields["port"]
        for endpoint in item["endpoints"]:
            endpoint["conditions"] = fields.get("conditions", {"ready": True})
    cluster.lab.write_manifests(objects, f"{spec.name}.yaml")
    wait_in_force(cluster.nodes)


@ORDERS
def test_clients_follow_when_their_backend_is_replaced(cluster, lab, client, pods):
    first, second = map(lab.pod, pods)
    spec = cluster.serve(cluster.new(), [first])
    with clients_of(cluster, spec) as clients, ExitStack() as ended:
        clients.follow(first.name)
        cluster.serve(spec, [first, second])
        clients.follow(first.name)
        ended.enter_context(stopped(lab, first))
        cluster.serve(spec, [second])
        clients.follow(second.name)


def test_clients_stay_with_a_backend_that_serves_while_another_gets_new_flows(cluster, lab, client):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    with clients_of(cluster, spec) as clients:
        clients.follow(first.name)
        cluster.serve(spec, [second], terminating=[first])
        assert [clients.hear() for _ in range(5)] == [{first.name}] * 5
        cluster.serve(spec, [second])
        clients.follow(second.name)


def test_clients_wait_while_nothing_serves(cluster, lab, client):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    with clients_of(cluster, spec) as clients:
        clients.follow(first.name)
        change_slices(cluster, spec, [first], conditions={"ready": False, "serving": False})
        assert clients.hear(PAUSE) <= NOBODY
        change_slices(cluster, spec, [first], conditions={"ready": True})
        clients.follow(first.name)
        cluster.serve(spec, [])
        assert clients.hear(PAUSE) <= NOBODY
        cluster.serve(spec, [second])
        clients.follow(second.name)


def test_with_internal_policy_local_clients_follow_on_their_node(cluster, lab):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-1-2")
    spec = cluster.new("ClusterIP", internalTrafficPolicy="Local")
    cluster.serve(spec, [first])
    ways = [("pod-1-2", "ClusterIP"), ("node1", "ClusterIP")]
    with clients_of(cluster, spec, ways) as clients, ExitStack() as ended:
        clients.follow(first.name)
        cluster.serve(spec, [lab.pod("pod-2-1")])
        assert clients.hear(PAUSE) == {"TimeoutError"}
        ended.enter_context(stopped(lab, first))
        cluster.serve(spec, [second])
        clients.follow(second.name)


@pytest.fixture
def other_port(lab) -> Iterator[str]:
    """A second server in the second node's first pod, on port 9090."""
    command = [sys.executable, "-I", "-S", "-c", ANSWER, "9090"]
    with lab.pod("pod-2-1").popen(command, stdout=subprocess.PIPE) as server:
        yield server.stdout.readline().strip()
        server.kill()


def test_clients_follow_to_another_target_port(cluster, lab, client, other_port):
    pod = lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [pod])
    with clients_of(cluster, spec) as clients:
        clients.follow(pod.name)
        change_slices(cluster, spec, [pod], port=9090)
        clients.follow(other_port)


@VERSIONS
@ORDERS
def test_a_connected_socket_of_the_host_learns_it_and_connects_to_another(
    cluster, lab, version, pods
):
    first, second = map(lab.pod, pods)
    spec = cluster.serve(cluster.new(), [first])
    places = [(lab.cluster_ip(spec.number, version), PORT)]
    places.append((address_of(lab.node("node1"), version), spec.node_port))
    with ExitStack() as stack:
        held = [stack.enter_context(connected(lab.node("node1"), *p, "udp")) for p in places]
        assert [exchange(each) for each in held] == [first.name] * 2
        cluster.serve(spec, [second], terminating=[first])
        assert [exchange(each) for each in held] == [first.name] * 2
        stack.enter_context(stopped(lab, first))
        cluster.serve(spec, [second])
        for each, place in zip(held, places, strict=True):
            assert ends(each)
            # A send that failed because the source address was missing has left the other error
            # pending.
            each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            each.connect(place)
            assert exchange(each) == second.name
    assert status(lab.node("node1"))["agent"]["kernel_lacks"] == {}


@VERSIONS
def test_other_connected_sockets_are_left_alone(cluster, lab, version):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec, other = cluster.serve(cluster.new(), [first]), cluster.serve(cluster.new(), [first])
    service = (lab.cluster_ip(spec.number, version), PORT)
    places = {
        "udp": [(address_of(first, version), lab.config.port)],
        "tcp": [service, (address_of(first, version), lab.config.port)],
    }
    places["udp"].append((lab.cluster_ip(other.number, version), PORT))
    with ExitStack() as stack:
        node = lab.node("node1")
        gone = stack.enter_context(connected(node, *service, "udp"))
        held = [
            stack.enter_context(connected(node, *place, protocol))
            for protocol, each in places.items()
            for place in each
        ]
        assert exchange(gone) == first.name
        cluster.serve(spec, [second])
        assert ends(gone)
        assert [exchange(each) for each in held for _ in range(3)] == [first.name] * 12


@VERSIONS
def test_a_restart_of_the_agent_touches_no_live_flow(cluster, lab, client, version):
    pods = [lab.pod("pod-1-1"), lab.pod("pod-2-1")]
    spec = cluster.serve(cluster.new(), pods)
    service = (lab.cluster_ip(spec.number, version), PORT)
    outside = (address_of(lab.node("node1"), version), spec.node_port)
    ways = [(lab.node("node1"), service), (lab.pod("pod-1-2"), service), (client, outside)]
    agent = cluster.agents["node1"]
    with ExitStack() as stack:
        held = [stack.enter_context(connected(*way[:1], *way[1], "udp")) for way in ways]
        before = [exchange(each, b"who") for each in held for _ in range(2)]
        agent.kill()
        agent.start()
        agent.wait_in_sync()
        wait_until(lambda: metric(agent.node, LOOKED_AFTER) > 0, "it has looked for stale sockets")
        assert [exchange(each, b"who") for each in held for _ in range(2)] == before

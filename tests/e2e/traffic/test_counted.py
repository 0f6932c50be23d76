# SPDX-License-Identifier: Apache-2.0
"""Counters and flow records match the traffic on each path and in each family, also when the agent
is killed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import NodeAgent
from ebpflb.model.flow import Counts
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.waiting import wait_until, wait_until_equal

CONNECTIONS = 10
# All are open before the first one sends, and stay open until they are told to close.
TALK = """
import json, socket, sys
address, port, size, times = sys.argv[1], *map(int, sys.argv[2:])
sent = received = 0
every = [socket.create_connection((address, port), 20) for _ in range(times)]
print("open", flush=True)
sys.stdin.readline()
for each in every:
    with each as connection:
        line = b"echo " + b"x" * size + b"\\n"
        connection.sendall(line)
        sent += len(line)
        answer = connection.recv(1 << 16)
        while not answer.endswith(b"\\n"):
            answer += connection.recv(1 << 16)
        received += len(answer)
print(json.dumps([sent, received]))
"""
TRY = """
import socket, sys
address, port, kind, times = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
for _ in range(times):
    with socket.socket(family, getattr(socket, kind)) as tried:
        tried.settimeout(20)
        try:
            tried.sendto(b"x", (address, port)) if kind == "SOCK_DGRAM" else tried.connect(
                (address, port)
            )
        except ConnectionRefusedError:
            pass
"""
Place = tuple[str, int]


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    with started(own_lab, tmp_path_factory.mktemp("counted"), nodes=["node1"]) as cluster:
        yield cluster


def talk(member: Member, place: Place, size: int, agent: NodeAgent | None = None) -> list[int]:
    """Connections, and bytes in each direction. The agent is killed and restarted while they are
    open.
    """
    argv = [sys.executable, "-c", TALK, place[0], str(place[1]), str(size), str(CONNECTIONS)]
    with member.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        if agent:
            agent.kill()
            agent.start()
        said, _ = process.communicate("go\n", 120)
    sent, received = json.loads(said)
    return [CONNECTIONS, sent, received]


def counts_of(cluster: Cluster, name: str) -> list[Counts]:
    """The counters of each frontend of a Service."""
    maps = pinned_maps(cluster.lab.node("node1"))
    return [each.counts for each in read_frontends(maps) if each.frontend.service.service == name]


def counted(cluster: Cluster, name: str) -> list[int]:
    """Connections and bytes in each direction, over all frontends of a Service."""
    found = counts_of(cluster, name)
    return [
        sum(each.connections for each in found),
        sum(each.original_bytes for each in found),
        sum(each.reply_bytes for each in found),
    ]


def told(cluster: Cluster, name: str) -> list[int]:
    """The same from the records of a Service's ended flows."""
    arguments = ("flows", "-o", "json", "--last", "4000", "--service", name, "--event", "end")
    ends = json.loads(ebpflb(cluster.lab.node("node1"), *arguments).stdout)
    assert {each["ended"] for each in ends} <= {"closed"}
    sums = [sum(each["bytes"][way] for each in ends) for way in ("original", "reply")]
    return [len(ends), *sums]


def ways(cluster: Cluster, spec: ServiceSpec, version: int) -> list[tuple[Member, Place]]:
    """From a pod, from the node and from outside."""
    lab, node = cluster.lab, cluster.lab.node("node1")
    service = (lab.cluster_ip(spec.number, version), spec.port)
    outside = (address_of(node, version), spec.node_port)
    return [(lab.pod("pod-1-1"), service), (node, service), (lab.client, outside)]


@pytest.mark.parametrize("where", ["pod-1-2", "pod-2-1"])
@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
def test_what_was_sent_was_counted_and_reported_on_every_way(
    cluster: Cluster, where: str, affinity: str
):
    """With affinity, a pod's connections are balanced at tc."""
    new = cluster.new(sessionAffinity=affinity)
    spec = cluster.serve(new, [cluster.lab.pod(where)])
    expected = [0, 0, 0]
    for version in cluster.versions:
        for size, (member, place) in enumerate(ways(cluster, spec, version), start=1000):
            found = talk(member, place, size)
            expected = [one + other for one, other in zip(expected, found, strict=True)]
    wait_until(lambda: counted(cluster, spec.name) == expected, "the last bytes are counted")
    wait_until(lambda: told(cluster, spec.name) == expected, "the last end is told of")


def test_what_was_sent_was_counted_while_the_agent_was_killed(cluster: Cluster):
    agent, expected = cluster.agents["node1"], [0, 0, 0]
    spec = cluster.serve(cluster.new(), [cluster.lab.pod("pod-2-1")])
    for version in cluster.versions:
        for member, place in ways(cluster, spec, version):
            found = talk(member, place, 1000, agent)
            expected = [one + other for one, other in zip(expected, found, strict=True)]
    agent.wait_in_sync()
    wait_until(lambda: counted(cluster, spec.name) == expected, "the last bytes are counted")


def refused(cluster: Cluster, name: str) -> int:
    return sum(each.refused for each in counts_of(cluster, name))


def dropped(cluster: Cluster, name: str) -> int:
    return sum(each.dropped for each in counts_of(cluster, name))


def attempt(member: Member, place: Place, kind: str) -> None:
    """This many connections, or datagrams from as many sockets."""
    argv = [sys.executable, "-c", TRY, place[0], str(place[1]), kind, str(CONNECTIONS)]
    assert member.exec(argv).returncode == 0


def test_each_refusal_is_counted_on_every_way(cluster: Cluster):
    """From outside with datagrams: a SYN may be retransmitted before its refusal is processed."""
    spec, expected = cluster.serve(cluster.new()), 0
    for version in cluster.versions:
        for member, place in ways(cluster, spec, version):
            attempt(member, place, "SOCK_DGRAM" if member is cluster.lab.client else "SOCK_STREAM")
            expected += CONNECTIONS
            wait_until_equal(lambda: refused(cluster, spec.name), expected)
    assert counted(cluster, spec.name) == [0, 0, 0]
    assert dropped(cluster, spec.name) == 0


def test_each_datagram_that_is_dropped_is_counted(cluster: Cluster):
    new = cluster.new(externalTrafficPolicy="Local")
    spec, expected = cluster.serve(new, [cluster.lab.pod("pod-2-1")]), 0
    for version in cluster.versions:
        *_, (member, place) = ways(cluster, spec, version)
        attempt(member, place, "SOCK_DGRAM")
        expected += CONNECTIONS
    wait_until_equal(lambda: dropped(cluster, spec.name), expected)
    assert refused(cluster, spec.name) == 0

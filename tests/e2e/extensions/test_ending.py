# SPDX-License-Identifier: Apache-2.0
"""Open connections are ended where the annotations of their Service ask for it: real sockets."""

import select
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import ceil

import pytest

from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import metric
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until

MANY = 12
QUESTION = b"who"
SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    with started(own_lab, tmp_path_factory.mktemp("ending")) as cluster:
        yield cluster


class Pool:
    """Connections of a client that opens another one for each that ends, at once."""

    def __init__(self, stack: ExitStack, member: Member, address: str, port: int) -> None:
        self._stack = stack
        self._where = member, address, port
        self.ended: Counter[str] = Counter()
        self.connections = [self._open() for _ in range(MANY)]

    def _open(self) -> tuple[socket.socket, str]:
        made = self._stack.enter_context(connected(*self._where))
        return made, exchange(made)

    @property
    def pods(self) -> Counter[str]:
        self._renew()
        return Counter(pod for _, pod in self.connections)

    def is_even(self, pods: Sequence[Member]) -> bool:
        """As even as it gets: a tenth more than its share is no surplus of a pod."""
        return max(self.pods.values()) <= ceil(1.1 * MANY / len(pods))

    def _renew(self) -> None:
        ready, _, _ = select.select([made for made, _ in self.connections], [], [], 0)
        for made in ready:
            error = ""
            try:
                assert made.recv(1) == b""
            except OSError as caught:
                error = type(caught).__name__
            self.ended[error] += 1
            self.connections = [each for each in self.connections if each[0] is not made]
            self.connections.append(self._open())


@pytest.fixture
def pools(cluster: Cluster) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pool_to(
    cluster: Cluster, pools: ExitStack, spec: ServiceSpec, source: str, version: int
) -> Pool:
    return Pool(pools, *cluster.way(spec, source, version))


EVEN = {"rebalance": "idle 1s, 6000/min"}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("source", ["pod-1-1", "node1"])
def test_after_more_pods_came_idle_connections_are_spread(cluster, pools, source, version):
    pods = cluster.lab.pods
    served = cluster.serve(cluster.new(annotations=EVEN), pods[:1])
    pool = pool_to(cluster, pools, served, source, version)
    assert pool.pods == {pods[0].name: MANY}
    cluster.serve(served, pods)
    wait_until(lambda: pool.is_even(pods), "the connections are spread", SECONDS)
    assert set(pool.ended) == {"ConnectionAbortedError"}


def test_one_that_is_used_stays(cluster, pools):
    first, second, *_ = cluster.lab.pods
    spec = cluster.serve(cluster.new(annotations=EVEN), [first])
    pool = pool_to(cluster, pools, spec, "pod-1-1", 4)
    cluster.serve(spec, [first, second])
    busy, _ = pool.connections[0]

    def is_even() -> bool:
        exchange(busy, QUESTION)
        return pool.is_even([first, second])

    wait_until(is_even, "the others are spread", SECONDS)
    assert any(made is busy for made, _ in pool.connections)


def test_a_dry_run_ends_nothing(cluster, pools):
    first, second, *_ = cluster.lab.pods
    spec = cluster.new(annotations={"rebalance": "idle 1s, 6000/min, dry-run"})
    cluster.serve(spec, [first])
    pool = pool_to(cluster, pools, spec, "pod-1-1", 4)
    cluster.serve(spec, [first, second])
    log = cluster.agents["node1"].log
    wait_until(lambda: "would be ended" in log.read_text(), "the agent says so", SECONDS)
    assert pool.pods == {first.name: MANY}


@pytest.mark.parametrize("version", [4, 6])
def test_connections_of_clients_outside_end_where_the_pod_is(cluster, pools, version):
    here = cluster.lab.pods_on("node1")
    spec = cluster.new(annotations=EVEN, externalTrafficPolicy="Local")
    cluster.serve(spec, here[:1])
    pool = pool_to(cluster, pools, spec, "client", version)
    assert pool.pods == {here[0].name: MANY}
    cluster.serve(spec, here)
    wait_until(lambda: pool.is_even(here), "they are spread", SECONDS)
    assert set(pool.ended) == {"ConnectionResetError"}


@pytest.mark.parametrize("more", [{}, {"rebalance": "idle 1h, 1/min, dry-run"}])
def test_old_connections_end_when_they_are_idle(cluster, pools, more):
    spec = cluster.new(annotations={"max-connection-age": "3s±10%", **more})
    cluster.serve(spec, cluster.lab.pods)
    pool = pool_to(cluster, pools, spec, "pod-1-1", 4)

    def are_old_ones_gone() -> bool:
        return pool.pods.total() == MANY and pool.ended.total() >= MANY

    wait_until(are_old_ones_gone, "all have been opened anew", SECONDS)


def gone(cluster: Cluster, pools: ExitStack, wish: str, source: str, version: int) -> Pool:
    """A pool whose pod is no endpoint any more, though it answers."""
    first, second, *_ = cluster.lab.pods_on("node2")
    spec = cluster.serve(cluster.new(annotations={"on-endpoint-gone": wish}), [first])
    pool = pool_to(cluster, pools, spec, source, version)
    cluster.serve(spec, [second])
    return pool


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("source", ["pod-1-1", "node1"])
def test_connections_of_an_endpoint_that_is_gone_are_reset(cluster, pools, source, version):
    pool = gone(cluster, pools, "reset", source, version)
    wait_until(lambda: pool.pods and pool.ended.total() == MANY, "all end", SECONDS)
    assert set(pool.ended) == {"ConnectionAbortedError"}
    assert len(pool.pods) == 1
    series = 'ebpflb_connections_ended_total{reason="endpoint_gone"}'
    assert metric(cluster.lab.node("node1"), series) >= MANY


def test_they_stay_if_that_is_asked_for(cluster, pools):
    pool = gone(cluster, pools, "keep", "pod-1-1", 4)
    for made, _ in pool.connections:
        assert exchange(made, QUESTION)
    assert not pool.ended

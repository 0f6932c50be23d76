# SPDX-License-Identifier: Apache-2.0
"""Connected UDP sockets of pods whose devices have none of ebpflb's programs."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.harness.cluster import Cluster, started, stopped
from tests.e2e.harness.command import metric
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.udp_ends import PORT, ends

VERSIONS = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node that finds no pod devices."""
    options = ["--workload-devices", "none*"]
    with started(own_lab, tmp_path_factory.mktemp("uncovered"), options, ["node1"]) as cluster:
        yield cluster


@VERSIONS
def test_a_socket_of_a_pod_is_reported_too(cluster, lab, version):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    place = (lab.cluster_ip(spec.number, version), PORT)
    with ExitStack() as stack:
        held = stack.enter_context(connected(lab.pod("pod-1-2"), *place, "udp"))
        assert exchange(held) == first.name
        stack.enter_context(stopped(lab, first))
        cluster.serve(spec, [second])
        assert ends(held)
        again = stack.enter_context(connected(lab.pod("pod-1-2"), *place, "udp"))
        assert exchange(again) == second.name


@VERSIONS
def test_a_backend_that_went_while_the_agent_was_down_is_noticed(cluster, lab, version):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    place = (lab.cluster_ip(spec.number, version), PORT)
    agent = cluster.agents["node1"]
    with connected(lab.pod("pod-1-2"), *place, "udp") as held:
        assert exchange(held) == first.name
        agent.kill()
        cluster.serve(spec, [second], wait=False)
        assert exchange(held) == first.name
        agent.start()
        agent.wait_in_sync()
        assert ends(held)


def test_metrics_report_how_many(cluster, lab):
    first, second = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [first])
    name = 'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"}'
    before = metric(lab.node("node1"), name)
    with connected(lab.node("node1"), lab.cluster_ip(spec.number, 4), PORT, "udp") as held:
        assert exchange(held) == first.name
        cluster.serve(spec, [second])
        assert ends(held)
    wait_until(lambda: metric(lab.node("node1"), name) == before + 1, "it is counted")

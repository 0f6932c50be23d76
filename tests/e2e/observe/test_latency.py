# SPDX-License-Identifier: Apache-2.0
"""How long connects take is on the page, and leads to the flows that are counted."""

import json
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import answers
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.series import page, series, wait_for

PORT = 80
TIMES = 10
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
CONNECT, RTT = "service_connect_seconds", "service_rtt_seconds"
LABELS = "tcp", "TCP"
LOSE_ONE = """
table inet lossy {
    chain arriving {
        type filter hook input priority 0
        tcp flags & (syn | ack) == syn limit rate 1/day burst 1 packets drop
    }
}
"""


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """Agents that count latency, whatever is recorded besides."""
    options = ["--metrics-latency", "true", "--flow-events", "none"]
    with started(own_lab, tmp_path_factory.mktemp("latency"), options) as made:
        yield made


def test_connects_and_round_trips_are_measured_in_both_families(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        for protocol in ("tcp", "udp"):
            address = lab.cluster_ip(spec.number, version)
            answers(lab.pod("pod-1-1"), address, PORT, protocol, TIMES)
            answers(lab.client, address_of(node, version), spec.node_port, protocol, TIMES)
    sent = TIMES * len(cluster.versions)
    wait_for(node, spec.name, {(f"{name}_count", *LABELS): sent for name in (CONNECT, RTT)})
    found = series(node, spec.name)
    assert (f"{CONNECT}_count", "udp", "UDP") not in found
    for name in (CONNECT, RTT):
        # A microsecond, and less than what a repeated SYN takes.
        assert 1e-6 < found[f"{name}_sum", *LABELS] / sent < 1


def test_a_lost_syn_counts_with_the_second_until_it_is_repeated(cluster):
    lab, node, pod = cluster.lab, cluster.lab.node("node1"), cluster.lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new("ClusterIP"), [pod])
    pod.exec(["nft", "-f", "-"], input=LOSE_ONE)
    try:
        answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT, times=TIMES)
    finally:
        pod.exec(["nft", "delete", "table", "inet", "lossy"])
    wait_until_equal(lambda: slow(node, spec.name, CONNECT), 1)
    wait_for(node, spec.name, {(f"{RTT}_count", *LABELS): TIMES})
    assert slow(node, spec.name, RTT) == 0


def slow(node: LabNode, service: str, name: str) -> float:
    """How many took more than half a second."""
    found = series(node, service)
    within = found.get((f"{name}_bucket", *LABELS, "0.5"), 0)
    return found.get((f"{name}_count", *LABELS), 0) - within


def test_an_exemplar_leads_to_its_flow(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT, times=TIMES)
    wait_for(node, spec.name, {(f"{CONNECT}_count", *LABELS): TIMES})

    def named() -> set[str]:
        families = text_string_to_metric_families(page(node, accept=OPENMETRICS))
        return {
            sample.exemplar.labels["flow_id"]
            for family in families
            for sample in family.samples
            if sample.exemplar and sample.labels["service"] == spec.name
        }

    wait_until(named, "there are exemplars")
    for each in named():
        (flow,) = json.loads(ebpflb(node, "flows", "-o", "json", "--id", each).stdout)
        assert flow["service"]["name"] == spec.name


def test_a_removed_service_has_no_series(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT, times=TIMES)
    wait_for(node, spec.name, {(f"{RTT}_count", *LABELS): TIMES})
    cluster.remove(spec)
    wait_until(lambda: not series(node, spec.name), "no series is left")

# SPDX-License-Identifier: Apache-2.0
"""The agents' metrics about traffic that a test has sent."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import metric
from tests.e2e.harness.questions import PROTOCOLS, answers, fate
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.series import page, plain, series, wait_for

PORT = 80
TIMES = 20


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """Agents that export metrics of backends and clients too."""
    logs = tmp_path_factory.mktemp("metrics")
    options = ["--metrics-backends", "true", "--metrics-clients", "1000"]
    with started(own_lab, logs, options) as made:
        yield made


def typed(name: str, protocol: str, kind: str) -> tuple[str, ...]:
    return f"service_{name}_total", protocol, protocol.upper(), kind


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_connections_are_counted_by_type_in_both_families(cluster, protocol):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, version), PORT, protocol, TIMES)
        answers(lab.client, address_of(node, version), spec.node_port, protocol, TIMES)
    sent = TIMES * len(cluster.versions)
    expected = {
        typed("connections", protocol, "ClusterIP"): sent,
        typed("connections", protocol, "NodePort"): sent,
        typed("refused", protocol, "ClusterIP"): 0,
    }
    wait_for(node, spec.name, expected)
    assert typed("connections", protocol, "ClusterIP") not in series(lab.node("node2"), spec.name)


def test_bytes_and_packets_at_tc_are_those_that_were_sent(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        answers(lab.client, address_of(node, version), spec.node_port, "udp", TIMES)
    sent = TIMES * len(cluster.versions)
    packets, payload = typed("packets", "udp", "NodePort"), typed("bytes", "udp", "NodePort")
    expected = {
        (*packets, "original"): sent,
        (*packets, "reply"): sent,
        (*payload, "original"): sent * len("who\n"),
    }
    wait_for(node, spec.name, expected)


def test_records_are_counted_by_client(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, version), PORT, "tcp", TIMES)
        answers(lab.client, address_of(node, version), spec.node_port, "tcp", TIMES)
    sent = TIMES * len(cluster.versions)
    name = "client_flow_records_total"
    wait_for(node, spec.name, {(name, "end", space, ""): sent for space in ("", "default")})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refusals_are_counted_at_the_socket_and_at_tc(cluster, protocol):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new())
    for version in cluster.versions:
        fate(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, version), PORT, protocol)
        fate(lab.client, address_of(node, version), spec.node_port, protocol)
    for kind in ("ClusterIP", "NodePort"):
        at_least = partial(is_at_least, node, spec.name, typed("refused", protocol, kind))
        wait_until(partial(at_least, len(cluster.versions)), f"{kind}: counted")
    assert series(node, spec.name)[typed("connections", protocol, "ClusterIP")] == 0


def is_at_least(node: LabNode, service: str, name: tuple[str, ...], value: float) -> bool:
    return series(node, service).get(name, 0) >= value


def test_connections_to_the_other_node_and_zone_are_counted_apart(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods)
    found = [
        each["pod"]
        for version in cluster.versions
        for each in answers(
            lab.pod("pod-1-1"), lab.cluster_ip(spec.number, version), PORT, times=TIMES
        )
    ]
    elsewhere = sum(name.startswith("pod-2") for name in found)
    assert elsewhere
    wait_for(
        node,
        spec.name,
        {
            typed("connections", "tcp", "ClusterIP"): len(found),
            plain("cross_node_connections_total", "tcp"): elsewhere,
            plain("cross_zone_connections_total", "tcp"): elsewhere,
            (*plain("endpoints", "tcp"), "local"): len(lab.pods_on("node1")) * 2,
            (*plain("endpoints", "tcp"), "remote"): len(lab.pods_on("node2")) * 2,
        },
    )
    # A question and its answer each.
    crossed = plain("cross_zone_bytes_total", "tcp")
    wait_until(lambda: is_at_least(node, spec.name, crossed, 2 * elsewhere), "bytes are counted")


def test_what_is_open_now_is_shown_with_its_age_and_its_backend(cluster):
    lab, node, pod = cluster.lab, cluster.lab.node("node1"), cluster.lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new(), [pod])
    backend = f"{pod.ipv4}:{lab.config.port}"
    where = ("backend_active_connections", "tcp", "TCP", backend, "node2", "zone-b")
    began = time.monotonic()
    with ExitStack() as stack:
        for member, address, port in (
            (lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT),
            (lab.client, node.ipv4, spec.node_port),
        ):
            assert exchange(stack.enter_context(connected(member, address, port))) == pod.name
        wait_for(node, spec.name, {plain("active_connections", "tcp"): 2, where: 2})
        age = plain("oldest_connection_seconds", "tcp")
        assert 0 < series(node, spec.name)[age] < time.monotonic() - began
        assert series(node, spec.name)["backend_connections_total", *where[1:]] == 2


def test_sums_stay_when_a_frontend_or_a_pod_goes_and_the_service_takes_them_along(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(externalIPs=["198.51.100.7"]), lab.pods)
    wait_until(lambda: series(node, spec.name), "it is known")
    answers(lab.pod("pod-1-1"), "198.51.100.7", PORT, times=TIMES)
    cluster.serve(replace(spec, spec={}), lab.pods[:1])
    counted = typed("connections", "tcp", "ExternalIP")
    wait_for(node, spec.name, {counted: TIMES})
    cluster.remove(spec)
    wait_until(lambda: not series(node, spec.name), "no series is left")


def test_a_first_connection_ends_an_endpoints_wait(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    before = observed(node)
    fate(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT)
    wait_until(lambda: observed(node) > before, "it is measured")


def observed(node: LabNode) -> float:
    return metric(node, "ebpflb_endpoint_first_connection_seconds_count")


def test_a_hundred_scrapes_at_once_are_answered_while_services_come_and_go(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    with ThreadPoolExecutor(20) as pool:
        pages = pool.map(lambda _: page(node), range(100))
        for _ in range(5):
            cluster.remove(cluster.serve(cluster.new(), lab.pods))
        for each in pages:
            assert each.rstrip().splitlines()[-1].startswith(("ebpflb_", "# TYPE ebpflb_"))
            assert "# TYPE ebpflb_backend_active_connections gauge" in each


def test_checks_of_the_metrics_port_are_counted(cluster):
    node = cluster.lab.node("node1")
    for _ in range(3):
        assert page(node, "/healthz") == "ok"
    told = page(node, "/metrics/slis").splitlines()
    assert 'kubernetes_healthcheck{name="ping",type="healthz"} 1.0' in told
    counted = 'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 3.0'
    assert counted in told


def test_promtool_has_nothing_to_say(cluster):
    lab = cluster.lab
    spec = cluster.serve(cluster.new(), lab.pods)
    answers(lab.pod("pod-1-1"), lab.cluster_ip(spec.number, 4), PORT, times=TIMES)
    wait_for(lab.node("node1"), spec.name, {typed("connections", "tcp", "ClusterIP"): TIMES})
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(
        command, input=page(lab.node("node1")), capture_output=True, text=True, check=False
    )
    said = (checked.stdout + checked.stderr).splitlines()
    assert [line for line in said if "ebpflb_" in line] == []

# SPDX-License-Identifier: Apache-2.0
"""`ebpflb top` shows the traffic that was sent, and marks failing backends."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ebpflb.lab import LabNode, Member
from ebpflb.lab.ask import enough
from tests.e2e.harness.cluster import Cluster, started, stopped
from tests.e2e.harness.command import ebpflb, error_line, metric
from tests.e2e.harness.questions import answers
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.sample import number, row_of, sampled

PORT = 80
COUNT = enough(4)


@pytest.fixture(scope="module")
def served(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node."""
    with started(own_lab, tmp_path_factory.mktemp("top"), nodes=["node1"]) as cluster:
        yield cluster


def test_top_counts_the_connections_that_are_sent(served, own_lab):
    spec = served.serve(served.new(), own_lab.pods)
    pod, (address, *_) = own_lab.pod("pod-1-1"), served.cluster_ips(spec)
    seen: list[dict[str, Any]] = []
    sample = sampled(
        own_lab.node("node1"), lambda: seen.extend(answers(pod, address, PORT, times=COUNT))
    )
    row = row_of(sample, spec)
    assert (number(sample, row, "connections"), row["endpoints"]) == (COUNT, 8)
    assert (row["refused"], row["dropped"], row["failed"], row["troubles"]) == (0, 0, 0, [])
    expected = {pod.ipv4: sum(each["pod"] == pod.name for each in seen) for pod in own_lab.pods}
    of_ipv4 = [each for each in row["backends"] if ":" not in each["address"]]
    assert expected == {each["address"]: number(sample, each, "connections") for each in of_ipv4}
    far = sum(expected[pod.ipv4] for pod in own_lab.pods_on("node2"))
    assert row["cross_node_share"] == pytest.approx(far / COUNT)
    assert row["largest_share"] == pytest.approx(max(expected.values()) / COUNT)
    assert row["even_share"] == 0.25


def test_refusals_are_counted_and_a_service_without_endpoints_is_marked(served, own_lab):
    spec = served.serve(served.new())
    pod, (address, *_) = own_lab.pod("pod-1-1"), served.cluster_ips(spec)
    sample = sampled(own_lab.node("node1"), lambda: answers(pod, address, PORT, times=3))
    row = row_of(sample, spec)
    assert (number(sample, row, "refused"), row["troubles"]) == (3, ["no endpoint"])


def test_bytes_are_counted_each_way(served, own_lab):
    spec = served.serve(served.new(), own_lab.pods_on("node1")[:1])
    node = own_lab.node("node1")
    lines: list[str] = []

    def send() -> None:
        with connected(own_lab.client, node.ipv4, spec.node_port) as connection:
            lines.extend(exchange(connection, b"x" * 99) for _ in range(10))

    row = row_of(sample := sampled(node, send), spec)
    assert (number(sample, row, "connections"), row["cross_node_share"]) == (1, 0)
    assert number(sample, row, "original_bytes") == 1000
    assert number(sample, row, "reply_bytes") == sum(len(line) + 1 for line in lines)
    (backend,) = (each for each in row["backends"] if ":" not in each["address"])
    for field in ("original_bytes", "reply_bytes"):
        assert backend[field] == row[field]


def test_a_backend_that_hangs_is_marked(served, own_lab):
    hanging, _ = pods = own_lab.pods_on("node1")
    spec = served.serve(served.new(), pods)
    node, client = own_lab.node("node1"), own_lab.client

    def send() -> None:
        client.load(node.ipv4, spec.node_port, count=60, workers=60, timeout=1.0)

    with stopped(own_lab, hanging):
        sample = sampled(node, send)
    row = row_of(sample, spec)
    assert row["troubles"] == [f"default/{hanging.name} answers nobody"]


@contextmanager
def held(pod: Member, address: str, count: int) -> Iterator[None]:
    """Connections that stay open."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connected(pod, address, PORT))
        yield


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("count", [4, 40])
def test_a_new_backend_gets_none_of_the_long_connections(served, own_lab, count, version):
    old, new = own_lab.pods_on("node1")
    spec = served.serve(served.new(), [old])
    with held(own_lab.node("node1"), own_lab.cluster_ip(spec.number, version), count):
        served.serve(spec, [old, new])
        sample = sampled(own_lab.node("node1"), lambda: None)
    row = row_of(sample, spec)
    assert (row["active"], row["connections"]) == (count, 0)
    assert row["troubles"] == [f"new pod default/{new.name} idle"]


@pytest.mark.parametrize("version", [4, 6])
def test_connections_that_stay_on_removed_pods_are_reported(served, own_lab, version):
    old, new = own_lab.pods_on("node1"), own_lab.pods_on("node2")
    spec, node = served.serve(served.new(), old), own_lab.node("node1")
    with held(node, own_lab.cluster_ip(spec.number, version), 24):
        served.serve(spec, new)
        row = row_of(sampled(node, lambda: None), spec)
        assert row["troubles"] == [
            "24 of 24 connections on removed pods",
            *(f"new pod default/{pod.name} idle" for pod in new),
        ]
        labels = f'namespace="default",service="{spec.name}",port="tcp",protocol="TCP"'
        assert metric(node, f"ebpflb_service_removed_endpoint_connections{{{labels}}}") == 24
        (where,) = {":" in each["address"] for each in row["backends"] if each["removed"]}
        assert where is (version == 6)
        shown = top_once(node, "--service", spec.name, "--backends", COLUMNS="40")
        header, *lines = shown.splitlines()
        words = " ".join(line[header.index("TROUBLE") :].strip() for line in lines)
        assert "24 of 24" in words
        assert "removed pods" in words
    wait_until(
        lambda: "removed" not in top_once(node, "--service", spec.name, "--backends"), "they end"
    )


def top_once(node: LabNode, *arguments: str, **environment: str) -> str:
    command = ("top", "--once", "--interval", "0.1", *arguments)
    return ebpflb(node, *command, **environment).stdout


def test_what_is_idle_is_hidden_and_a_service_can_be_chosen(served, own_lab):
    node, spec = own_lab.node("node1"), served.serve(served.new(), own_lab.pods)
    assert spec.name not in top_once(node)
    assert "not shown (--all)" in top_once(node)
    assert f"default/{spec.name}:tcp" in top_once(node, "--all")
    (_, *rows) = top_once(node, "--service", spec.name).splitlines()
    assert {row.split()[0] for row in rows} == {
        f"default/{spec.name}:{port}" for port in ("tcp", "udp/UDP")
    }


def test_without_an_agent_pods_are_addresses(served, own_lab):
    node, (pod, *_) = own_lab.node("node1"), own_lab.pods_on("node1")
    spec = served.serve(served.new(), [pod])
    chosen = ("--service", spec.name, "--backends")
    assert f"default/{pod.name}:" in top_once(node, *chosen)
    assert f"{pod.ipv4}:" in top_once(node, *chosen, "--query-socket", "/none")


def test_all_local_endpoints_gone_is_marked(served, own_lab):
    spec = served.new(externalTrafficPolicy="Local")
    served.serve(spec, own_lab.pods_on("node2"))
    lines = ebpflb(own_lab.node("node1"), "top", "--once", "--interval", "0.2").stdout.splitlines()
    (line,) = (each for each in lines if f"{spec.name}:tcp" in each)
    assert line.startswith("! ")
    assert line.endswith("no local endpoint")


def test_forty_columns_hold_the_table(served, own_lab):
    node = own_lab.node("node1")
    done = ebpflb(node, "top", "--once", "--interval", "0.1", COLUMNS="40", NO_COLOR="1")
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert "\x1b" not in done.stdout
    assert done.stdout.split()[:3] == ["SERVICE", "CONN/S", "TROUBLE"]


def test_on_a_terminal_it_is_live_until_q(served, own_lab):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ebpflb", "top", "--interval", "0.1"]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    top = own_lab.node("node1").popen(command, env={**os.environ, "TERM": "xterm"}, **streams)
    os.close(theirs)
    shown = b""
    while b"Service ports by connections" not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"n")
    while b"Service ports by name" not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"q")
    assert top.wait(60) == 0
    os.close(ours)


def test_without_pins_it_is_one_line(own_lab):
    assert "nothing is loaded at" in error_line(ebpflb(own_lab.node("node2"), "top"))

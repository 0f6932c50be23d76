# SPDX-License-Identifier: Apache-2.0
"""`ebpflb connections` lists what is open, with its client, and finds what was left behind."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until, wait_until_equal

PORT = 80
QUESTION = b"x" * 99
NEWLINE = 1


@pytest.fixture(scope="module")
def served(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node."""
    with started(own_lab, tmp_path_factory.mktemp("connections"), nodes=["node1"]) as cluster:
        yield cluster


def listed(node: LabNode, *arguments: str) -> list[dict[str, Any]]:
    lines = ebpflb(node, "connections", *arguments, "-o", "jsonl").stdout.splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_a_connection_of_a_pod_is_listed_with_what_it_has_carried(served, own_lab, family):
    (target, *_), client = own_lab.pods_on("node2"), own_lab.pod("pod-1-1")
    spec, node = served.serve(served.new(), [target]), own_lab.node("node1")
    with connected(client, served.cluster_ips(spec)[family], PORT) as connection:
        answer = exchange(connection, QUESTION)
        (found,) = listed(node, "--service", spec.name)
        assert (found["path"], found["protocol"], found["state"]) == (
            "socket",
            "TCP",
            "established",
        )
        assert found["client"]["address"] == (client.ipv4, client.ipv6)[family]
        assert found["client"]["pod"] == f"default/{client.name}"
        assert found["backend"]["address"] == (target.ipv4, target.ipv6)[family]
        assert found["backend"]["pod"] == f"default/{target.name}"
        assert found["service"] == {"namespace": "default", "name": spec.name, "port": "tcp"}
        assert found["bytes"]["original"] == len(QUESTION) + NEWLINE
        assert found["bytes"]["reply"] >= len(answer)
        assert 0 <= found["idle"] <= found["age"]
        assert "removed" not in found
    wait_until(lambda: not listed(node, "--service", spec.name), "the connection is forgotten")


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_a_client_outside_is_listed_by_the_node_that_it_came_in_by(served, own_lab, family):
    (target, *_), node = own_lab.pods_on("node2"), own_lab.node("node1")
    spec, outside = served.serve(served.new(), [target]), own_lab.client
    with connected(outside, (node.ipv4, node.ipv6)[family], spec.node_port) as connection:
        exchange(connection, QUESTION)
        (found,) = listed(node, "--service", spec.name)
        assert (found["path"], found["state"]) == ("tc", "established")
        assert found["client"]["address"] == (outside.ipv4, outside.ipv6)[family]
        assert found["bytes"]["original"] == len(QUESTION) + NEWLINE
    wait_until(lambda: not listed(node, "--service", spec.name), "the connection is forgotten")


def test_who_holds_connections_to_pods_that_are_gone_is_found(served, own_lab):
    old, new = own_lab.pods_on("node1"), own_lab.pods_on("node2")
    spec, node, client = (
        served.serve(served.new(), old),
        own_lab.node("node1"),
        own_lab.pod("pod-1-1"),
    )
    address, _ = served.cluster_ips(spec)
    with ExitStack() as stack:
        for _ in range(3):
            exchange(stack.enter_context(connected(client, address, PORT)), QUESTION)
        from_node = stack.enter_context(connected(node, address, PORT))
        exchange(from_node, QUESTION)
        (own, *_) = from_node.getsockname()
        assert not listed(node, "--service", spec.name, "--backend-gone")
        served.serve(spec, new)

        def counts() -> list[tuple[Any, ...]]:
            asked = ("connections", "--service", spec.name, "--backend-gone", "--by", "client")
            found = json.loads(ebpflb(node, *asked, "-o", "json").stdout)
            return [tuple(each.values()) for each in found]

        wait_until_equal(counts, [(f"default/{client.name}", 3, 3), (own, 1, 1)])
        assert len(listed(node, "--from", f"default/{client.name}", "--service", spec.name)) == 3
        assert len(listed(node, "--from", own, "--service", spec.name)) == 1
        assert not listed(node, "--older", "1h", "--service", spec.name)

# SPDX-License-Identifier: Apache-2.0
"""Which addresses of a node accept NodePorts, and which ports remain the host's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, fate, names, pods_at
from tests.e2e.harness.reached import server

HOST = "server of the host"
SYSCTLS = Path("/proc/sys/net/ipv4/conf")


@pytest.fixture(scope="module")
def primary(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node that serves NodePorts only on the primary addresses."""
    logs = tmp_path_factory.mktemp("primary")
    options = ["--nodeport-addresses=primary"]
    with started(own_lab, logs, options, ["node1"]) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_addresses_that_are_not_chosen_belong_to_the_host(primary, protocol):
    lab = primary.lab
    node, clients = lab.node("node1"), [lab.pod("pod-1-1"), lab.node("node1"), lab.client]
    spec, empty = primary.new(), primary.new()
    others = [ranges.pod_gateway(1) for ranges in lab.layout.ranges]
    with server(node, HOST, spec.node_port), server(node, HOST, empty.node_port):
        primary.serve(spec, lab.pods)
        primary.serve(empty)
        for address in node.addresses:
            for member in clients:
                assert pods_at(member, address, spec.node_port, protocol) == names(lab.pods)
                assert fate(member, address, empty.node_port, protocol) == REFUSED
        for address in others:
            for member in clients[:2]:
                for port in (spec.node_port, empty.node_port):
                    assert fate(member, address, port, protocol) == HOST, member.name


def test_route_localnet_stays_off(cluster, lab):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    assert pods_at(node, "127.0.0.1", spec.node_port) == names(lab.pods)
    # The path depends on the reader; the values are those of its network namespace.
    found = node.exec(["sh", "-c", f"cat {SYSCTLS}/*/route_localnet"]).stdout.split()
    assert set(found) == {"0"}

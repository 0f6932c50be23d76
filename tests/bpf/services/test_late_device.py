# SPDX-License-Identifier: Apache-2.0
"""Flows that started before their pod's device existed, while the route led elsewhere."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.node import ROUTE_REMEMBERED, Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed, source_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    client,
    cluster_ip,
    node_port,
    remote_backend,
)

pytestmark = pytest.mark.usefixtures("addresses")


@contextmanager
def routed_to_pod(node: Node, address: str) -> Iterator[None]:
    """Make the address that of a pod of this node."""
    with node.entered():
        subprocess.run(["ip", "route", "add", address, "dev", node.pod.name], check=True)
    try:
        time.sleep(ROUTE_REMEMBERED)
        yield
    finally:
        with node.entered():
            subprocess.run(["ip", "route", "del", address, "dev", node.pod.name], check=True)


def is_reversed(datapath: Datapath, program: str, ifindex: int, reply, frontend: End) -> bool:
    """Whether a program undoes DNAT on the reply; if not, the reply passes unchanged."""
    result = datapath.run(program, reply, ifindex=ifindex)
    if source_of(result.packet) == frontend:
        return True
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, reply)
    return False


def test_a_masqueraded_flow_moves_to_the_pods_device(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)

    def reversed_at() -> list[bool]:
        sent = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
        assert sent.verdict is Verdict.REDIRECT
        sources.add(source_of(sent.packet))
        reply = kind.frame(backend, source_of(sent.packet), "SA")
        return [
            is_reversed(datapath, "lb_host_ingress", node.overlay.ifindex, reply, frontend),
            is_reversed(datapath, "lb_pod_ingress", node.pod.ifindex, reply, frontend),
        ]

    sources: set[End] = set()
    assert reversed_at() == [True, False]
    with routed_to_pod(node, backend.address):
        assert reversed_at() == [False, True]
    assert len(sources) == 1


def test_a_flow_of_the_host_moves_to_the_pods_device(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    host, frontend = End(kind.net.node, CLIENT_PORT), cluster_ip(datapath, kind, [index])
    request = kind.frame(host, frontend)
    datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
    with routed_to_pod(node, backend.address):
        datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)
        reply = kind.frame(backend, host, "SA")
        result = datapath.run("lb_pod_ingress", reply, ifindex=node.pod.ifindex)
    assert_same(result.packet, changed(reply, source=frontend))

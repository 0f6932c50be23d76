# SPDX-License-Identifier: Apache-2.0
"""Metrics of a node in memory, whose flows take as long to read as a test says."""

import threading
from sys import byteorder
from typing import Any

import pytest

from ebpflb.agent import measuring
from ebpflb.agent.measuring import Measuring
from ebpflb.agent.places import Places
from ebpflb.config import load_settings
from ebpflb.dataplane.memory import MemoryHash, memory_maps
from ebpflb.dataplane.structs import Counts
from ebpflb.dataplane.sync import Sync
from tests.unit.dataplane.desired import backends, by_service, frontend

SECONDS = 10


class Node:
    """What Measuring asks of a Kernel."""

    families = ("IPv4", "IPv6")

    def __init__(self) -> None:
        self.maps = memory_maps()
        self.usage: dict[str, tuple[int, int]] = {}
        self.written = threading.Event()
        self.readable = threading.Event()
        self.asked = threading.Event()
        self.maps["lb_conntrack"].chunks = self._chunks  # type: ignore[method-assign]

    def _chunks(self, limit: int = 0):
        self.asked.set()
        assert self.readable.wait(SECONDS)
        return MemoryHash.chunks(self.maps["lb_conntrack"], limit)  # type: ignore[arg-type]

    def connect(self, connections: int) -> None:
        """Frontend and backend have counted so many by now."""
        value = bytes(Counts(connections=connections)) + bytes(Counts())
        for name in ("lb_count_front", "lb_count_back"):
            self.maps[name].update((0).to_bytes(4, byteorder), value)


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(measuring, "settle", lambda: None)
    made = Node()
    Sync(made.maps, quiesce=lambda: None).apply(by_service(frontend(choice=backends("10.1.0.1"))))
    yield made
    made.readable.set()


def measuring_of(node: Any) -> Measuring:
    given = {"manifests": "/", "cgroup-root": "/", "node-name": "node-a"}
    return Measuring(load_settings(given, {}), node, Places("node-a"), {})


def crossings(measured: Measuring) -> list[str]:
    page = measured.page().body.decode()
    return [each for each in page.splitlines() if "cross_node_connections_total{" in each]


def test_the_loop_does_not_wait_until_all_flows_are_read(node):
    measured = measuring_of(node)
    node.connect(5)
    measured.begin()
    assert node.asked.wait(SECONDS)
    node.readable.set()
    measured.stop()
    node.connect(7)
    (line,) = crossings(measured)
    assert line.endswith("} 2")

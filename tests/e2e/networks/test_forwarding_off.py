# SPDX-License-Identifier: Apache-2.0
"""A device whose own IPv6 sysctl `forwarding` is off: Linux checks only that of all devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.lab import LabNode
from tests.e2e.harness.questions import PROTOCOLS, fate

POD = "pod-2-1"
_SYSCTL = Path("/proc/sys/net/ipv6/conf/eth0/forwarding")


@pytest.fixture
def node(lab) -> Iterator[LabNode]:
    node = lab.node("node1")
    for value in ("0", "1"):
        with node.entered():
            _SYSCTL.write_text(value)
        if value == "0":
            yield node


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pod_on_another_node_is_reached(cluster, lab, node, protocol):
    spec = cluster.serve(cluster.new(), [lab.pod(POD)])
    assert fate(lab.client, node.ipv6, spec.node_port, protocol) == POD

# SPDX-License-Identifier: Apache-2.0
"""More masqueraded UDP exchanges with one backend than there are source ports."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebpflb.dataplane.layout.structs import LbPortRange, LbSettings
from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.traffic.exchanges import lost_exchanges

# Of all ports, a sixth had a packet in the last two seconds. Sixteen are tried, so one of the
# exchanges finds none once in 10^9 runs.
PORTS, RATE = 600, 50
EXCHANGES = 750
_KEY = bytes(4)


@contextmanager
def few_ports(node: LabNode) -> Iterator[None]:
    """This many ports to masquerade with."""
    settings = pinned_maps(node)["lb_settings"]
    before = settings.lookup(_KEY)
    assert before
    value = LbSettings.from_buffer_copy(before)
    half = PORTS // 2
    value.snat_ports[:] = [LbPortRange(2000, 1999 + half), LbPortRange(62000, 61999 + half)]
    settings.update(_KEY, bytes(value))
    yield
    settings.update(_KEY, before)


@pytest.mark.parametrize("version", [4, 6])
def test_exchanges_do_not_use_up_the_ports(cluster: Cluster, lab, version: int):
    (node, *_) = cluster.nodes
    spec = cluster.serve(cluster.new(), [lab.pod("pod-2-1")])
    place = address_of(node, version), spec.node_port
    with few_ports(node):
        assert not lost_exchanges(lab.client, *place, rate=RATE, count=EXCHANGES)

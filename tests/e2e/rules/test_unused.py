# SPDX-License-Identifier: Apache-2.0
"""Addresses of a ServiceCIDR that no Service has: packets to them are dropped."""

from collections.abc import Iterator
from functools import partial

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.view.counts import read_drops, sum_drops
from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps, service_ranges
from tests.e2e.harness.questions import PROTOCOLS, is_silent, names, pods_at
from tests.e2e.harness.waiting import wait_until

PORT = 80
# Below the numbers that the cluster assigns to Services, so that none ever had the address.
NOBODY = 90


def dropped(node: LabNode) -> int:
    return sum_drops(read_drops(pinned_maps(node)))[DropReason.LB_DROP_UNUSED_ADDRESS]


def has_dropped(node: LabNode, before: int) -> bool:
    return dropped(node) > before


@pytest.fixture
def ranges(cluster: Cluster) -> Iterator[None]:
    """The lab's Service addresses are in a ServiceCIDR, and node1 has a route for the rest."""
    lab = cluster.lab
    services = [str(each.services()) for each in lab.layout.ranges]
    node = lab.node("node1")
    for each in lab.layout.ranges:
        via = address_of(lab.client, each.version)
        node.exec(["ip", "route", "add", str(each.services()), "via", via])
    with service_ranges(lab):
        yield
    for text in services:
        node.exec(["ip", "route", "del", text])


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_who_sends_to_an_unused_address_hears_nothing(cluster, lab, client, version, protocol):
    nobody = lab.cluster_ip(NOBODY, version)
    node = lab.node("node1")
    for member in (lab.pod("pod-1-1"), node, client):
        before = dropped(node)
        assert is_silent(member, nobody, PORT, protocol), member.name
        wait_until(partial(has_dropped, node, before), f"{member.name}: it is counted")


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_what_services_have_is_served_and_drops_nothing(cluster, lab, client, version, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    before = dropped(node)
    for member in (lab.pod("pod-1-1"), node, client):
        place = (lab.cluster_ip(spec.number, version), PORT)
        assert pods_at(member, *place, protocol) == names(lab.pods), member.name
    assert dropped(node) == before


@pytest.mark.parametrize("version", [4, 6])
def test_without_a_service_cidr_nothing_is_dropped(cluster, lab, version):
    node = lab.node("node1")
    before = dropped(node)
    assert is_silent(lab.pod("pod-1-1"), lab.cluster_ip(NOBODY, version), PORT)
    assert dropped(node) == before

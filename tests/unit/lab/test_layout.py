# SPDX-License-Identifier: Apache-2.0
import itertools
from ipaddress import ip_address

import pytest

from ebpflb.errors import ConfigError
from ebpflb.lab.layout import LABS_AT_ONCE, Cni, LabConfig, Layout, Ranges, SeatKind, Stack


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"name": "Upper"}, "name: 'Upper'"),
        ({"name": "-a"}, "name: '-a'"),
        ({"name": "../a"}, "name: '../a'"),
        ({"name": "a" * 41}, "name: "),
        ({"nodes": 0}, "nodes: 0 is not between 1 and 100"),
        ({"pods": 201}, "pods: 201 is not between 0 and 200"),
        ({"port": 65536}, "port: 65536"),
        ({"rp_filter": 3}, "rp_filter: 3"),
        ({"zones": ()}, "zones: name at least one"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(setting, message):
    with pytest.raises(ConfigError) as raised:
        LabConfig(**setting)
    assert str(raised.value).startswith(message)


def test_a_small_lab_has_the_documented_members_and_addresses():
    layout = Layout(LabConfig(nodes=2, pods=2), 0)
    assert {seat.name: layout.addresses(seat) for seat in layout.seats()} == {
        "underlay": ("10.100.0.1", "fdeb:f1b::1"),
        "node1": ("10.100.0.11", "fdeb:f1b::11"),
        "node2": ("10.100.0.12", "fdeb:f1b::12"),
        "pod-1-1": ("10.100.129.11", "fdeb:f1b:0:101::11"),
        "pod-1-2": ("10.100.129.12", "fdeb:f1b:0:101::12"),
        "pod-2-1": ("10.100.130.11", "fdeb:f1b:0:102::11"),
        "pod-2-2": ("10.100.130.12", "fdeb:f1b:0:102::12"),
        "client": ("10.100.0.2", "fdeb:f1b::2"),
    }


@pytest.mark.parametrize(
    ("family", "versions"), [(Stack.IPV4, [4]), (Stack.IPV6, [6]), (Stack.DUAL, [4, 6])]
)
def test_members_have_one_address_per_family(family, versions):
    layout = Layout(LabConfig(family=family), 0)
    for seat in layout.seats():
        assert [ip_address(each).version for each in layout.addresses(seat)] == versions


@pytest.mark.parametrize("index", [0, LABS_AT_ONCE - 1])
def test_no_two_members_of_the_largest_lab_share_an_address(index):
    layout = Layout(LabConfig(nodes=100, pods=200, cni=Cni.VXLAN), index)
    addresses = list(
        itertools.chain.from_iterable(layout.addresses(seat) for seat in layout.seats())
    )
    for ranges in layout.ranges:
        for node in layout.nodes():
            addresses += [ranges.pod_gateway(node.node), ranges.tunnel(node.node)]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("version", [4, 6])
def test_ranges_of_one_lab_and_of_two_labs_do_not_overlap(version):
    first, second = Ranges(version, 0), Ranges(version, 1)
    networks = [
        each
        for ranges in (first, second)
        for each in (ranges.underlay(), ranges.services(), ranges.external(), ranges.cluster())
    ]
    for one, other in itertools.combinations(networks, 2):
        assert not one.overlaps(other), (one, other)


@pytest.mark.parametrize("version", [4, 6])
def test_pod_ranges_of_all_nodes_are_parts_of_the_cluster_range(version):
    ranges = Ranges(version, 3)
    pods = [ranges.pods(node) for node in range(1, 101)]
    whole = ranges.cluster()
    assert all(each[0] in whole and each[-1] in whole for each in pods)
    assert len(set(pods)) == len(pods)


def test_a_pod_is_inside_the_range_of_its_node():
    layout = Layout(LabConfig(nodes=2, pods=200), 0)
    for ranges in layout.ranges:
        for seat in layout.pods(2):
            assert ip_address(ranges.pod(seat.node, seat.number)) in ranges.pods(2)


def test_zones_take_turns():
    layout = Layout(LabConfig(nodes=3, zones=("a", "b")), 0)
    assert [layout.zone(seat.node) for seat in layout.nodes()] == ["a", "b", "a"]


def test_the_underlay_is_built_before_those_whose_uplink_it_makes():
    kinds = [seat.kind for seat in Layout(LabConfig(), 0).seats()]
    assert kinds[0] is SeatKind.UNDERLAY


def test_a_family_that_the_lab_lacks_is_said():
    layout = Layout(LabConfig(family=Stack.IPV4), 0)
    assert layout.ranges_of(None).version == 4
    with pytest.raises(ConfigError, match="has no IPv6"):
        layout.ranges_of(6)

# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_network

import pytest

from ebpflb.relay.redaction import canonical, cluster_addresses


def node(*addresses, **spec):
    told = [{"type": "InternalIP", "address": each} for each in addresses]
    return {"spec": spec, "status": {"addresses": told}}


def test_addresses_of_the_cluster():
    found = cluster_addresses(
        [
            node("10.0.0.1", "FD00:0::1%eth0", podCIDR="10.244.0.0/24", podCIDRs=["10.244.0.0/24"]),
            node("::ffff:10.0.0.2", "node-2", podCIDRs=["10.244.1.7/24", "fd00:10::/64"]),
            node(podCIDR="10.244.4.0/24"),
        ]
    )
    assert found.nodes == {"10.0.0.1", "fd00::1", "10.0.0.2"}
    ranges = "10.244.0.0/23", "10.244.4.0/24", "fd00:10::/64"
    assert found.pod_cidrs == tuple(map(ip_network, ranges))
    assert found.are_complete


def test_a_hostname_may_be_an_address():
    told = [{"type": "Hostname", "address": "10.0.0.3"}, {"type": "Hostname", "address": "node-3"}]
    assert cluster_addresses([{"status": {"addresses": told}}]).nodes == {"10.0.0.3"}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        None,
        [],
        {"spec": None, "status": None},
        {"spec": [], "status": []},
        {"spec": {"podCIDRs": "10.0.0.0/8"}, "status": {"addresses": {}}},
        {"spec": {"podCIDRs": [None, 1, "", "x/8", {}], "podCIDR": 1}},
        {"status": {"addresses": [None, "10.0.0.9", {}, {"address": None}, {"address": "x"}]}},
        {"spec": {"podCIDR": "10.0.0.0/99"}},
    ],
)
def test_odd_values_of_nodes_are_skipped(odd):
    found = cluster_addresses([odd, node("10.0.0.1", podCIDR="10.244.0.0/24")])
    assert found == (frozenset({"10.0.0.1"}), (ip_network("10.244.0.0/24"),), False)


def test_without_nodes_nothing_is_known():
    assert cluster_addresses([]) == (frozenset(), (), False)


@pytest.mark.parametrize(
    ("address", "found"),
    [("10.0.0.01", "10.0.0.1"), ("FE80::1%eth0", "fe80::1"), ("é", ""), ("\0", "")],
)
def test_the_form_of_addresses(address, found):
    assert canonical(address) == found

# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from ebpflb.model.address import Family
from tests.builders import address, node


def test_the_first_address_of_each_family_is_the_primary_one():
    found = node(addresses=("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")).primary
    assert found == {Family.IPV4: address("192.0.2.1"), Family.IPV6: address("2001:db8::1")}


def test_a_node_without_addresses_has_no_primary_one():
    assert node().primary == {}


def test_only_internal_addresses_are_internal_ones():
    ips = ("192.0.2.1", "192.0.2.2", "2001:db8::1")
    found = replace(node(addresses=ips), external=(address("2001:db8::1"),))
    assert found.internal == {Family.IPV4: address("192.0.2.1")}

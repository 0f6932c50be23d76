# SPDX-License-Identifier: Apache-2.0
"""Which addresses are the node's, and which of them accept NodePorts."""

from collections.abc import Sequence

import pytest

from ebpflb.dataplane.attach.node_addresses import bound_address, node_addresses, node_port_filter
from ebpflb.dataplane.kernel.interfaces import InterfaceAddress
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.model.address import Family, family_of, format_address, parse_address

PRIMARY = {Family.IPV4: parse_address("192.0.2.1"), Family.IPV6: parse_address("2001:db8::1")}
SERVING = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT


def found(*texts: str) -> list[InterfaceAddress]:
    addresses = [parse_address(text) for text in texts]
    return [InterfaceAddress(1, family_of(each), each, 8) for each in addresses]


def serving(wanted: Sequence[str], *texts: str) -> list[str]:
    addresses = node_addresses(found(*texts), node_port_filter(wanted, PRIMARY))
    assert [format_address(address) for address in addresses] == list(texts)
    return [format_address(each) for each, flags in addresses.items() if flags == SERVING]


def test_loopback_addresses_are_none_of_the_node():
    texts = ("127.0.0.1", "127.9.0.1", "::1", "128.0.0.1", "fe80::1", "::2")
    addresses = node_addresses(found(*texts), lambda _: True)
    assert [format_address(one) for one in addresses] == ["128.0.0.1", "fe80::1", "::2"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param([], ["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1"], id="all"),
        pytest.param(["primary"], ["192.0.2.1", "2001:db8::1"], id="primary"),
        pytest.param(
            ["10.0.0.0/8"], ["10.0.0.1", "2001:db8::1", "fd00::1"], id="a family without CIDR"
        ),
        pytest.param(["192.0.2.0/24", "fd00::/8"], ["192.0.2.1", "fd00::1"], id="both families"),
        pytest.param(
            ["0.0.0.0/0", "::/0"], ["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1"], id="zero"
        ),
        pytest.param(
            ["192.0.2.0/24", "0.0.0.0/0", "fd00::/8"],
            ["192.0.2.1", "10.0.0.1", "fd00::1"],
            id="zero beside another",
        ),
        pytest.param(["127.0.0.0/8"], ["2001:db8::1", "fd00::1"], id="loopback alone"),
    ],
)
def test_node_port_addresses(wanted: Sequence[str], expected: list[str]):
    assert serving(wanted, "192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1") == expected


def test_a_bind_address_is_the_primary_one_of_its_family():
    assert bound_address("192.0.2.9") == {Family.IPV4: parse_address("192.0.2.9")}


@pytest.mark.parametrize("text", ["", "0.0.0.0", "::"])
def test_an_unspecified_bind_address_says_nothing(text: str):
    assert bound_address(text) == {}

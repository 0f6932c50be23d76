# SPDX-License-Identifier: Apache-2.0
"""Which addresses are the node's, and which of them accept NodePorts."""

from collections.abc import Sequence

import pytest

from ebpflb.dataplane.attach.node_addresses import (
    LOCALHOST_4,
    LOCALHOST_6,
    bound_address,
    is_named,
    named_addresses,
    node_addresses,
    node_port_filter,
)
from ebpflb.dataplane.kernel.rtnetlink import InterfaceAddress
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.model.address import Family, family_of, format_address, parse_address

PRIMARY = {Family.IPV4: parse_address("192.0.2.1"), Family.IPV6: parse_address("2001:db8::1")}
TEXTS = ("127.0.0.1", "::1", "192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1")
ANY_4, ANY_6 = ["0.0.0.0"], ["::"]
SERVING = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT


def found(*texts: str, scope: int = 0) -> list[InterfaceAddress]:
    addresses = [parse_address(text) for text in texts]
    return [InterfaceAddress(1, family_of(each), each, 8, scope) for each in addresses]


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
        pytest.param(["localhost"], [], id="localhost"),
        pytest.param(["localhost", "primary"], ["192.0.2.1", "2001:db8::1"], id="two words"),
        pytest.param(
            ["10.0.0.0/8", "primary"], ["192.0.2.1", "10.0.0.1", "2001:db8::1"], id="word and CIDR"
        ),
        pytest.param(
            ["fd00::/8", "localhost"], ["fd00::1"], id="a word names the family without CIDR, too"
        ),
        pytest.param(
            ["all", "primary"],
            ["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1"],
            id="all beside another",
        ),
    ],
)
def test_node_port_addresses(wanted: Sequence[str], expected: list[str]):
    assert serving(wanted, "192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1") == expected


def test_primary_names_a_family_without_a_primary_address():
    only_4 = node_port_filter(["primary"], {Family.IPV4: PRIMARY[Family.IPV4]})
    assert [only_4(address) for address in PRIMARY.values()] == [True, False]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], True),
        (["all"], True),
        (["localhost"], True),
        (["primary", "localhost"], True),
        (["127.0.0.1/32", "primary"], True),
        (["fd00::/8"], True),
        (["primary"], False),
        (["10.0.0.0/8", "primary"], False),
    ],
)
def test_whether_localhost_accepts_node_ports(wanted, expected):
    assert node_port_filter(wanted, PRIMARY)(LOCALHOST_4) is expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], False),
        (["all"], False),
        (["::/0"], False),
        (["primary"], False),
        (["127.0.0.0/8"], False),
        (["fd00::/8"], False),
        (["localhost"], True),
        (["all", "localhost"], True),
        (["::1/128"], True),
        (["::/0", "::/64"], True),
    ],
)
def test_localhost_of_ipv6_accepts_node_ports_if_it_is_named(wanted, expected):
    assert is_named(wanted, LOCALHOST_6) is expected


def test_a_bind_address_is_the_primary_one_of_its_family():
    assert bound_address("192.0.2.9") == {Family.IPV4: parse_address("192.0.2.9")}


@pytest.mark.parametrize("text", ["", "0.0.0.0", "::"])
def test_an_unspecified_bind_address_says_nothing(text: str):
    assert bound_address(text) == {}


@pytest.mark.parametrize(
    ("wanted", "expected_4", "expected_6"),
    [
        pytest.param([], ANY_4, ANY_6, id="all"),
        pytest.param(["0.0.0.0/0", "::/0"], ANY_4, ANY_6, id="zero"),
        pytest.param(["10.0.0.0/8", "0.0.0.0/0"], ANY_4, ANY_6, id="zero and more"),
        pytest.param(["10.0.0.0/8"], ["10.0.0.1"], ANY_6, id="a family without CIDR"),
        pytest.param(["fd00::/8"], ANY_4, ["fd00::1"], id="the other family"),
        pytest.param(["127.0.0.0/8"], ["127.0.0.1"], ANY_6, id="loopback"),
        pytest.param(["198.51.100.0/24"], [], ANY_6, id="none of them"),
        pytest.param(
            ["10.0.0.0/8", "192.0.2.1/32"], ["192.0.2.1", "10.0.0.1"], ANY_6, id="several"
        ),
        pytest.param(["all"], ANY_4, ANY_6, id="the word all"),
        pytest.param(["all", "fd00::/8"], ANY_4, ANY_6, id="all and more"),
        pytest.param(["localhost"], ["127.0.0.1"], ["::1"], id="the word localhost"),
        pytest.param(["primary"], ["192.0.2.1"], ["2001:db8::1"], id="the word primary"),
        pytest.param(
            ["primary", "localhost", "10.0.0.0/8"],
            ["127.0.0.1", "192.0.2.1", "10.0.0.1"],
            ["::1", "2001:db8::1"],
            id="words and CIDRs",
        ),
    ],
)
def test_cidrs_and_words_say_where(wanted, expected_4, expected_6):
    assert named_addresses(wanted, PRIMARY, found(*TEXTS)) == {
        Family.IPV4: expected_4,
        Family.IPV6: expected_6,
    }


def test_link_local_addresses_are_left_out():
    addresses = [*found("fe80::1", scope=253), *found("fd00::1")]
    named = named_addresses(["fe80::/10", "fd00::/8"], PRIMARY, addresses)
    assert named[Family.IPV6] == ["fd00::1"]

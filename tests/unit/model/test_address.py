# SPDX-License-Identifier: Apache-2.0
"""Addresses: one form for both families, lenient reading."""

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.address import (
    WILDCARD,
    Family,
    Protocol,
    family_of,
    format_address,
    is_link_local,
    parse_address,
    parse_range,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("  10.0.0.1\n", "10.0.0.1"),
        ("010.000.00.001", "10.0.0.1"),
        ("000.000.000.000", "0.0.0.0"),
        ("10.100.20.30", "10.100.20.30"),
        ("FD00:0:0::1", "fd00::1"),
        (" fd00::0010 ", "fd00::10"),
        ("fd00:100::", "fd00:100::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:010.0.00.01", "10.0.0.1"),
        ("64:ff9b::192.0.02.033", "64:ff9b::c000:221"),
    ],
)
def test_reads_what_the_api_has_ever_accepted(text: str, canonical: str):
    assert format_address(parse_address(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "web.example",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.0x1",
        "10.0.0.1/32",
        "1 0.0.0.1",
        "fd00::1%eth0",
        "fd00:::1",
        "10.0.0.1\0",
        "\ud800",
        "\u0661.0.0.1",
    ],
)
def test_refuses_what_is_no_address(text: str):
    with pytest.raises(ValueError, match=r"^.* is not an IP address$") as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_ipv4_is_kept_as_a_mapped_address():
    assert parse_address("10.0.0.1") == bytes(10) + b"\xff\xff\x0a\x00\x00\x01"
    assert family_of(parse_address("10.0.0.1")) is Family.IPV4
    assert family_of(parse_address("::1")) is Family.IPV6


def test_protocols_have_the_numbers_of_the_ip_header():
    for protocol in Protocol:
        assert protocol == getattr(socket, f"IPPROTO_{protocol.name}")


def test_each_family_has_its_own_wildcard():
    assert format_address(WILDCARD[Family.IPV4]) == "0.0.0.0"
    assert format_address(WILDCARD[Family.IPV6]) == "::"
    assert {family: family_of(address) for family, address in WILDCARD.items()} == {
        Family.IPV4: Family.IPV4,
        Family.IPV6: Family.IPV6,
    }


@given(st.ip_addresses())
def test_reads_what_it_writes(ip: IPv4Address | IPv6Address):
    address = parse_address(str(ip))
    assert len(address) == 16
    assert parse_address(format_address(address)) == address
    if isinstance(ip, IPv4Address) or ip.ipv4_mapped is None:
        assert family_of(address) == ip.version


def test_link_local_is_what_python_calls_so_in_ipv6():
    for text in ("fe80::1", "febf:ffff::", "fe7f::1", "fec0::1", "fd00::1", "::1"):
        assert is_link_local(parse_address(text)) == IPv6Address(text).is_link_local
    assert not is_link_local(parse_address("169.254.0.1"))


@pytest.mark.parametrize(
    ("text", "family", "canonical"),
    [
        ("192.168.0.0/24", Family.IPV4, "192.168.0.0/24"),
        (" 203.0.113.77/25 ", Family.IPV4, "203.0.113.0/25"),
        ("010.0.0.0/08", Family.IPV4, "10.0.0.0/8"),
        ("0.0.0.0/0", Family.IPV4, "0.0.0.0/0"),
        ("FD00::1/64", Family.IPV6, "fd00::/64"),
    ],
)
def test_reads_a_range(text: str, family: Family, canonical: str):
    assert parse_range(text) == (family, canonical)


@pytest.mark.parametrize(
    "text", ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "x/8", "10.0.0.0/²"]
)
def test_refuses_what_is_no_range(text: str):
    with pytest.raises(ValueError, match="is not a CIDR"):
        parse_range(text)

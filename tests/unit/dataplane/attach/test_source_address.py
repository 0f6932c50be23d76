# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.attach.source_address import (
    best_source,
    by_subnet,
    cut_off,
    primary_addresses,
)
from ebpflb.dataplane.kernel.rtnetlink import AddressFlag, DefaultRoute, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Address, Family, format_address, parse_address

HOST, WORKLOAD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD
IPV4, IPV6 = Family.IPV4, Family.IPV6


def address(text: str, length: int, scope: int = 0, flags: int = 0) -> InterfaceAddress:
    family = IPV6 if ":" in text else IPV4
    return InterfaceAddress(2, family, parse_address(text), length, scope, AddressFlag(flags))


def chosen(family: Family, *addresses: InterfaceAddress) -> str | None:
    best = best_source(addresses, family)
    return format_address(best) if best else None


LINK_SCOPE = 253
SECONDARY, TENTATIVE, OPTIMISTIC, DEPRECATED, DADFAILED = (
    AddressFlag.SECONDARY,
    AddressFlag.TENTATIVE,
    AddressFlag.OPTIMISTIC,
    AddressFlag.DEPRECATED,
    AddressFlag.DADFAILED,
)


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        pytest.param(None, [], id="none"),
        pytest.param("10.0.0.1", [("10.0.0.1", 24), ("10.0.0.2", 24)], id="the first"),
        pytest.param("10.0.0.2", [("10.0.0.9", 32), ("10.0.0.2", 24)], id="no lone VIP"),
        pytest.param("10.0.0.9", [("10.0.0.9", 32)], id="a lone one if there is no other"),
        pytest.param("10.0.0.2", [("10.0.0.1", 24, 0, SECONDARY), ("10.0.0.2", 24)], id="primary"),
        pytest.param(None, [("169.254.0.1", 16, LINK_SCOPE)], id="not of link scope"),
    ],
)
def test_the_best_source_in_ipv4(expected, addresses):
    assert chosen(IPV4, *(address(*facts) for facts in addresses)) == expected


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        pytest.param(
            "fd00::1", [("fe80::1", 64, LINK_SCOPE), ("fd00::1", 64)], id="not link-local"
        ),
        pytest.param(
            "fd00::2", [("fd00::1", 64, 0, TENTATIVE), ("fd00::2", 64)], id="no tentative"
        ),
        pytest.param(
            "fd00::1",
            [("fd00::1", 64, 0, TENTATIVE | OPTIMISTIC), ("fd00::2", 64)],
            id="an optimistic one",
        ),
        pytest.param(
            "fd00::2",
            [("fd00::1", 64, 0, DEPRECATED), ("fd00::2", 64, 0, SECONDARY)],
            id="rather temporary than deprecated",
        ),
        pytest.param(
            "fd00::2", [("fd00::1", 64, 0, SECONDARY), ("fd00::2", 64)], id="no temporary"
        ),
        pytest.param(None, [("fd00::1", 64, 0, DADFAILED)], id="none that somebody else has"),
        pytest.param(None, [("10.0.0.1", 24)], id="none of the other family"),
    ],
)
def test_the_best_source_in_ipv6(expected, addresses):
    assert chosen(IPV6, *(address(*facts) for facts in addresses)) == expected


def of(ifindex: int, text: str) -> InterfaceAddress:
    return address(text, 24)._replace(ifindex=ifindex)


def test_the_primary_address_is_the_default_routes():
    routed: dict[Family, Address | None] = {IPV4: parse_address("10.0.0.7"), IPV6: None}
    found = primary_addresses(routed, [of(2, "10.0.0.1")], {2: HOST})
    assert found == {IPV4: parse_address("10.0.0.7")}


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        pytest.param("fd00::1", [("fd00::9", 128), ("fd00::1", 64)], id="no VIP"),
        pytest.param("fd00::9", [("fd00::9", 128), ("fd00::8", 128)], id="one of several alone"),
        pytest.param("fd00::9", [("fd00::9", 64), ("fd00::1", 64)], id="what the kernel chose"),
    ],
)
def test_the_primary_address_of_ipv6_is_no_vip(expected, addresses):
    routed: dict[Family, Address | None] = {IPV6: parse_address("fd00::9")}
    found = primary_addresses(routed, [address(*facts) for facts in addresses], {2: HOST})
    assert found == {IPV6: parse_address(expected)}


def test_without_a_default_route_it_is_that_of_the_first_host_device():
    addresses = [of(1, "10.0.0.1"), of(4, "10.0.0.4"), of(3, "10.0.0.3"), of(2, "10.0.0.2")]
    found = primary_addresses({}, addresses, {4: HOST, 3: HOST, 2: WORKLOAD})
    assert found == {IPV4: parse_address("10.0.0.3")}


def subnets(*addresses: tuple[str, int]) -> dict[str, str]:
    """By text."""
    found = [address(*facts) for facts in addresses]
    family = found[0].family
    return {str(key): format_address(source) for key, source in by_subnet(found, family).items()}


def test_each_subnet_has_its_first_address():
    assert subnets(("10.0.0.1", 24), ("10.1.0.1", 16), ("10.0.0.9", 24), ("10.2.0.1", 32)) == {
        "10.0.0.0/24": "10.0.0.1",
        "10.1.0.0/16": "10.1.0.1",
    }


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param([("10.0.0.1", 24)], id="one"),
        pytest.param([("10.0.0.1", 24), ("10.0.0.2", 24)], id="one with two addresses"),
        pytest.param([("10.0.0.1", 24), ("10.0.9.1", 32)], id="one and a VIP"),
        pytest.param([("10.0.0.1", 32), ("10.0.9.1", 32)], id="none"),
        pytest.param([("fd00::1", 64), ("fd01::1", 128)], id="one in IPv6"),
    ],
)
def test_one_subnet_is_no_choice(addresses):
    assert subnets(*addresses) == {}


WORDS = st.integers(0, 7)
IN_SUBNET = st.tuples(WORDS, WORDS, WORDS).map(lambda words: "fd{:02x}:{:x}:{:x}::1".format(*words))


@given(sources=st.lists(IN_SUBNET, min_size=2, max_size=6, unique=True), destination=IN_SUBNET)
def test_the_longest_prefix_names_an_address_like_the_destination(sources, destination):
    chosen = by_subnet([address(text, 64) for text in sources], IPV6)
    target = parse_address(destination)
    covering = [prefix for prefix in chosen if prefix.covers(target)]
    most = max(equal_bits(text, destination) for text in sources)
    if covering:
        source = chosen[max(covering, key=lambda prefix: prefix.length)]
        assert equal_bits(format_address(source), destination) == most
    else:
        assert {equal_bits(text, destination) for text in sources} == {most}


def equal_bits(one: str, other: str) -> int:
    return 128 - (int(ip_address(one)) ^ int(ip_address(other))).bit_length()


def on(ifindex: int, text: str, length: int) -> InterfaceAddress:
    return address(text, length)._replace(ifindex=ifindex)


ONE, TWO = on(1, "203.0.113.2", 30), on(2, "203.0.113.6", 30)


@pytest.mark.parametrize(
    ("down", "default", "expected"),
    [
        pytest.param([], {IPV4: 1}, set(), id="all are up"),
        pytest.param([2], {IPV4: 1}, {TWO.address}, id="the other one works"),
        pytest.param([1], {IPV4: 1}, set(), id="the route stays"),
        pytest.param([1, 2], {IPV4: 1}, set(), id="none works"),
        pytest.param([2], {}, set(), id="no route"),
        pytest.param([2], {IPV6: 1}, set(), id="a route of the other family"),
    ],
)
def test_addresses_of_an_uplink_that_is_down_are_cut_off(down, default, expected):
    routes = {family: DefaultRoute(ifindex, None) for family, ifindex in default.items()}
    assert cut_off([ONE, TWO], down, routes) == expected


def test_an_address_that_another_device_has_too_is_not_cut_off():
    assert not cut_off([ONE, TWO._replace(address=ONE.address)], [2], {IPV4: DefaultRoute(1, None)})

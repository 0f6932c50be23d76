# SPDX-License-Identifier: Apache-2.0
"""Which clients may use the load-balancer IPs of a Service port, after kube-proxy's rules."""

from typing import Any

import pytest

from ebpflb.model.plan import Frontend, FrontendType, plan_service
from ebpflb.model.service import ServicePort
from ebpflb.model.source_ranges import Prefix, allowed_sources
from tests.builders import address, node, service, service_port

NODE = ("192.168.0.2", "192.168.1.2", "fd00::2")
RANGES = ("192.168.0.0/24", "203.0.113.0/25")
VIPS = ("1.2.3.4", "5.6.7.8")


def balanced(*ranges: str, **fields: Any) -> ServicePort:
    """A Service port with two load-balancer IPs."""
    vips = tuple(map(address, VIPS))
    return service_port(load_balancer_ips=vips, source_ranges=ranges, **fields)


def shown(port: ServicePort, *addresses: str) -> set[str]:
    return set(map(str, allowed_sources(port, node(addresses=addresses))))


ALLOWED = {
    "without ranges everybody": ((), NODE, set()),
    "ranges alone where the node is in none": (RANGES[1:], NODE, {RANGES[1]}),
    "every load-balancer IP too where the node is in one": (
        RANGES,
        NODE,
        {*RANGES, "1.2.3.4/32", "5.6.7.8/32"},
    ),
    "only the first address of the node counts": (("192.168.1.0/24",), NODE, {"192.168.1.0/24"}),
    "a node without an address is in no range": (RANGES, (), set(RANGES)),
    "a node without an address of the family is in no range": (RANGES, NODE[2:], set(RANGES)),
    "a range given twice is one": (RANGES[1:] * 2, (), set(RANGES[1:])),
}


@pytest.mark.parametrize(("ranges", "addresses", "expected"), ALLOWED.values(), ids=list(ALLOWED))
def test_who_may_use_a_load_balancer_ip(
    ranges: tuple[str, ...], addresses: tuple[str, ...], expected: set[str]
):
    assert shown(balanced(*ranges), *addresses) == expected


def test_ipv6_has_rules_of_its_own():
    port = service_port(
        "fd00:96::1", load_balancer_ips=(address("2001:db8::9"),), source_ranges=("fd00::/16",)
    )
    assert shown(port, *NODE) == {"fd00::/16", "2001:db8::9/128"}
    assert shown(port, "192.168.0.2") == {"fd00::/16"}


@pytest.mark.parametrize(
    ("text", "length", "inside", "outside"),
    [
        ("10.0.0.0", 104, "10.255.255.255", "11.0.0.0"),
        ("10.1.2.3", 128, "10.1.2.3", "10.1.2.2"),
        ("10.1.2.2", 127, "10.1.2.3", "10.1.2.4"),
        ("fd03::", 16, "fd03:ffff::1", "fd04::"),
        ("fd03::1", 128, "fd03::1", "fd03::"),
    ],
)
def test_a_prefix_covers_what_begins_like_it(text: str, length: int, inside: str, outside: str):
    prefix = Prefix(address(text), length)
    assert prefix.covers(address(inside))
    assert not prefix.covers(address(outside))


def test_the_order_of_ranges_does_not_matter():
    forth, back = (allowed_sources(balanced(*each), node()) for each in (RANGES, RANGES[::-1]))
    assert forth == back == tuple(sorted(forth))


def limited(frontends: tuple[Frontend, ...]) -> set[FrontendType]:
    return {each.type for each in frontends if each.allowed_sources}


def test_only_load_balancer_ips_are_limited():
    port = balanced(*RANGES, node_port=30080, external_ips=(address("203.0.113.9"),))
    frontends = plan_service(service("web", port), [], node())
    assert limited(frontends) == {FrontendType.LOAD_BALANCER}
    assert len(frontends) == 5


def test_a_load_balancer_ip_that_is_an_external_ip_too_is_limited():
    port = balanced(*RANGES, external_ips=(address(VIPS[0]),))
    frontends = plan_service(service("web", port), [], node())
    assert limited(frontends) == {FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER}


def test_ports_and_families_do_not_share_ranges():
    open_to_all = service_port("fd00:96::1", load_balancer_ips=(address("2001:db8::9"),))
    frontends = plan_service(service("web", balanced(*RANGES), open_to_all), [], node())
    ipv4 = {each.key.address for each in frontends if each.allowed_sources}
    assert ipv4 == set(map(address, VIPS))

# SPDX-License-Identifier: Apache-2.0
"""loadBalancerSourceRanges: which clients may use the load-balancer IPs of a Service port."""

from typing import NamedTuple

from ebpflb.model.address import Address, Family, family_of, format_address, parse_address
from ebpflb.model.node import Node
from ebpflb.model.service import ServicePort

_BITS = 128
_BITS_BEFORE_IPV4 = 96


class Prefix(NamedTuple):
    """The addresses with the same first `length` of 128 bits; the other bits of address are 0."""

    address: Address
    length: int

    def __str__(self) -> str:
        is_ipv4 = family_of(self.address) is Family.IPV4
        length = self.length - _BITS_BEFORE_IPV4 if is_ipv4 else self.length
        return f"{format_address(self.address)}/{length}"

    def covers(self, address: Address) -> bool:
        unlike = int.from_bytes(address, "big") ^ int.from_bytes(self.address, "big")
        return unlike >> (_BITS - self.length) == 0


Prefixes = tuple[Prefix, ...]


def allowed_sources(port: ServicePort, node: Node) -> Prefixes:
    """The clients that may use the load-balancer IPs, sorted; empty for all.

    If the node itself is allowed, so are the load-balancer IPs: if one of them is also an address
    of the node, traffic from the node to it has that address as its source.
    """
    allowed = {parse_prefix(text) for text in port.source_ranges}
    primary = node.primary.get(port.family)
    if primary and any(prefix.covers(primary) for prefix in allowed):
        allowed |= {Prefix(address, _BITS) for address in port.load_balancer_ips}
    return tuple(sorted(allowed))


def parse_prefix(text: str) -> Prefix:
    """The reverse of `str()`. ValueError."""
    first, _, length = text.partition("/")
    address = parse_address(first)
    before = _BITS_BEFORE_IPV4 if family_of(address) is Family.IPV4 else 0
    return Prefix(address, before + int(length))

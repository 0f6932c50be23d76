# SPDX-License-Identifier: Apache-2.0
"""IP addresses, families and protocols as values."""

import re
from collections.abc import Mapping
from enum import IntEnum
from ipaddress import ip_network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from types import MappingProxyType
from typing import NamedTuple, NewType

Address = NewType("Address", bytes)
"""16 bytes in network order; IPv4 as ::ffff:a.b.c.d."""


class SocketAddress(NamedTuple):
    """For example an endpoint of a Service port."""

    address: Address
    port: int


class Family(IntEnum):
    """Values are IP version numbers."""

    IPV4 = 4
    IPV6 = 6

    @property
    def text(self) -> str:
        """As Kubernetes writes it."""
        return f"IPv{self.value}"


class Protocol(IntEnum):
    """Values are protocol numbers of the IP header."""

    TCP = 6
    UDP = 17
    SCTP = 132


_MAPPED, _IPV4_BYTES = bytes(10) + b"\xff\xff", 4
_LOOPBACK_4, _LOOPBACK_6 = _MAPPED + b"\x7f", bytes(15) + b"\1"
# Zeros before a digit, within an address in dotted decimal form.
_LEADING_ZEROS = re.compile(r"(?<=\.)0+(?=[0-9])|(?:^|(?<=:))0+(?=[0-9]+\.)")
_RANGE = re.compile(r"([^/]*)/([0-9]+)\s*")

WILDCARD: Mapping[Family, Address] = MappingProxyType(
    {Family.IPV4: Address(_MAPPED + bytes(4)), Family.IPV6: Address(bytes(16))}
)
"""Stands for all addresses of the node that accept NodePorts, in that family."""


def parse_address(text: str) -> Address:
    """Parse an address, ignoring surrounding blanks and leading zeros (read as decimal).

    Raises ValueError. An IPv4-mapped IPv6 address becomes the IPv4 address, as in Go.
    """
    try:
        return _parse(text)
    except (OSError, ValueError):
        return _parse_leniently(text)


def address_of(packed: bytes) -> Address:
    """From its 4 or 16 bytes, as the kernel has them."""
    return Address(_MAPPED + packed if len(packed) == _IPV4_BYTES else packed)


def _parse(text: str) -> Address:
    return address_of(inet_pton(AF_INET6 if ":" in text else AF_INET, text))


def _parse_leniently(text: str) -> Address:
    try:
        return _parse(_LEADING_ZEROS.sub("", text.strip()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{text!r} is not an IP address") from error


def format_address(address: Address) -> str:
    if family_of(address) is Family.IPV4:
        return inet_ntop(AF_INET, address[12:])
    return inet_ntop(AF_INET6, address)


def family_of(address: Address) -> Family:
    return Family.IPV4 if address.startswith(_MAPPED) else Family.IPV6


def is_loopback(address: Address) -> bool:
    """127.0.0.0/8 or ::1."""
    return address.startswith(_LOOPBACK_4) or address == _LOOPBACK_6


def is_link_local(address: Address) -> bool:
    """fe80::/10."""
    return address[0] == 0xFE and address[1] & 0xC0 == 0x80  # noqa: PLR2004


def parse_range(text: str) -> tuple[Family, str]:
    """The family and the canonical text of a CIDR, as lenient as parse_address().

    Raises ValueError. Bits after the prefix are cleared.
    """
    parts = _RANGE.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a CIDR")
    try:
        address = parse_address(parts[1])
        network = ip_network(f"{format_address(address)}/{int(parts[2])}", strict=False)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a CIDR") from error
    return family_of(address), str(network)

# SPDX-License-Identifier: Apache-2.0
"""ICMP errors of the tests: what a receiver or a router says about a packet."""

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded
from scapy.packet import Packet, Raw

from ebpflb.model.address import Family
from tests.bpf.harness.packets import Kind, built

UNREACHABLE, TIME_EXCEEDED, TOO_BIG = "unreachable", "time exceeded", "too big"
# Of the transport header: what RFC 792 asks for, a TCP header, and more than there is.
QUOTES = (8, 20, 500)


def error_header(kind: Kind, what: str, mtu: int = 0) -> Packet:
    """The ICMP header of an error."""
    if kind.net.family is Family.IPV4:
        types = {UNREACHABLE: (3, 3), TIME_EXCEEDED: (11, 0), TOO_BIG: (3, 4)}
        number, code = types[what]
        return ICMP(type=number, code=code, nexthopmtu=mtu) if mtu else ICMP(type=number, code=code)
    if what == UNREACHABLE:
        return ICMPv6DestUnreach(code=4)
    return ICMPv6PacketTooBig(mtu=mtu) if what == TOO_BIG else ICMPv6TimeExceeded(code=0)


def network_length(kind: Kind) -> int:
    """Bytes of the network header."""
    return 20 if kind.ip is IP else 40


def error(  # noqa: PLR0913 - every part of an error matters
    kind: Kind,
    source: str,
    quoted: Packet,
    *,
    target: str = "",
    what: str = UNREACHABLE,
    mtu: int = 0,
    transport: int = 500,
) -> Packet:
    """An error from `source` that quotes so many bytes of a packet behind its network header.

    It goes to the source of that packet, or to `target`.
    """
    quote = bytes(quoted.payload)[: network_length(kind) + transport]
    header = kind.packet(source, target or quoted.payload.src) / error_header(kind, what, mtu)
    return built(header / Raw(quote))

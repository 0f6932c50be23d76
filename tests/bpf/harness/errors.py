# SPDX-License-Identifier: Apache-2.0
"""ICMP errors for tests, from a receiver or a router."""

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded
from scapy.packet import Packet, Raw

from ebpflb.model.address import Family, Protocol
from tests.bpf.harness.datapath import Result, Verdict
from tests.bpf.harness.packets import NODE_MAC, SENDER_MAC, Kind, assert_same, built, ttl_of

UNREACHABLE, TIME_EXCEEDED, TOO_BIG = "unreachable", "time exceeded", "too big"
NO_WAY = "no route"
# Quoted bytes of the transport header: the minimum of RFC 792, a TCP header, and more than exists.
QUOTES = (8, 20, 500)


def error_header(kind: Kind, what: str, mtu: int = 0) -> Packet:
    """The ICMP header of an error."""
    if kind.net.family is Family.IPV4:
        types = {UNREACHABLE: (3, 3), TIME_EXCEEDED: (11, 0), TOO_BIG: (3, 4), NO_WAY: (3, 1)}
        number, code = types[what]
        return ICMP(type=number, code=code, nexthopmtu=mtu) if mtu else ICMP(type=number, code=code)
    if what in (UNREACHABLE, NO_WAY):
        return ICMPv6DestUnreach(code=4 if what == UNREACHABLE else 0)
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
    """An error from `source` that quotes that many bytes of a packet after its network header.

    It goes to the source of that packet, or to `target`.
    """
    quote = bytes(quoted.payload)[: network_length(kind) + transport]
    header = kind.packet(source, target or quoted.payload.src) / error_header(kind, what, mtu)
    return built(header / Raw(quote))


def _quoted(kind: Kind, packet: Packet) -> bytes:
    """The network header and the first bytes of the transport header, 20 of TCP, 8 of UDP."""
    return bytes(packet.payload)[: network_length(kind) + (20 if kind.proto is Protocol.TCP else 8)]


def assert_answered(result: Result, kind: Kind, packet: Packet, what: str, mtu: int = 0) -> None:
    """The sender gets a correct ICMP error that quotes its packet."""
    network = packet.payload
    answer = kind.packet(network.dst, network.src)
    answer.src, answer.dst = NODE_MAC, SENDER_MAC
    if kind.ip is IP:
        answer.payload.id = 0
    answer = answer / error_header(kind, what, mtu) / Raw(_quoted(kind, packet))
    assert result.verdict is Verdict.REDIRECT
    assert_same(result.packet, built(answer))
    assert ttl_of(result.packet) == 64

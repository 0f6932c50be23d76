# SPDX-License-Identifier: Apache-2.0
"""Fragmented frames, and frames with options or extension headers before the transport header."""

from collections.abc import Iterator

from scapy.layers.inet import IP, IPOption_NOP, IPOption_RR
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from scapy.packet import Packet, Raw

from ebpflb.model.address import Family
from tests.bpf.harness.packets import Kind, built

IDENTIFICATION = 4711
SIZE = 800

_OPTIONS: dict[str, list[Packet]] = {
    "4 bytes of options": [IPOption_NOP()] * 4,
    "40 bytes of options": [IPOption_RR(length=39), IPOption_NOP()],
}
_EXTENSIONS: dict[str, list[Packet]] = {
    "hop by hop": [IPv6ExtHdrHopByHop()],
    "destination options": [IPv6ExtHdrDestOpt()],
    "routing that has ended": [IPv6ExtHdrRouting(segleft=0)],
    "atomic fragment": [IPv6ExtHdrFragment(id=IDENTIFICATION)],
    "long options": [IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(242))])],
    "four headers": [
        IPv6ExtHdrHopByHop(),
        IPv6ExtHdrDestOpt(),
        IPv6ExtHdrRouting(segleft=0),
        IPv6ExtHdrFragment(id=IDENTIFICATION),
    ],
}
HEADERS = {Family.IPV4: tuple(_OPTIONS), Family.IPV6: tuple(_EXTENSIONS)}


def with_headers(packet: Packet, name: str) -> Packet:
    """The frame with headers of HEADERS before its transport header."""
    packet = packet.copy()
    if name in _OPTIONS:
        network = packet[IP]
        network.options = _OPTIONS[name]
        network.ihl = network.len = network.chksum = None
        return built(packet)
    return extended(packet, _EXTENSIONS[name])


def extended(packet: Packet, headers: list[Packet]) -> Packet:
    """The IPv6 frame with extension headers."""
    packet = packet.copy()
    network = packet[IPv6]
    body, proto = Raw(bytes(network.payload)), network.nh
    network.remove_payload()
    del network.nh, network.plen
    for header in headers:
        packet = packet / header.copy()
    packet.lastlayer().nh = proto
    return built(packet / body)


def fragments(packet: Packet, size: int = SIZE, number: int = IDENTIFICATION) -> list[Packet]:
    """The frame's datagram in fragments of `size` bytes, a multiple of 8."""
    body = bytes(packet.payload.payload)
    starts = range(0, len(body), size)
    return [_fragment(packet, body[at : at + size], at, at != starts[-1], number) for at in starts]


def _fragment(packet: Packet, body: bytes, at: int, is_followed: bool, number: int) -> Packet:
    packet = packet.copy()
    network = packet.payload
    proto = network.proto if IP in packet else network.nh
    network.remove_payload()
    if IP in packet:
        network.flags, network.frag, network.id = "MF" if is_followed else 0, at // 8, number
        network.len = network.chksum = None
        return built(packet / Raw(body))
    del network.nh, network.plen
    header = IPv6ExtHdrFragment(nh=proto, offset=at // 8, m=int(is_followed), id=number)
    return built(packet / header / Raw(body))


def header_cases(kinds: list[Kind]) -> Iterator[tuple[Kind, str]]:
    """Each kind of packet with each of the headers it may have."""
    for kind in kinds:
        for name in HEADERS[kind.net.family]:
            yield kind, name

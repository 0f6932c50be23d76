# SPDX-License-Identifier: Apache-2.0
"""IP packets that no network stack would send: any source, any sequence number, any length."""

import socket
import struct
from collections.abc import Iterator

from tests.e2e.harness.attackers import Place
from tests.e2e.harness.inject import checksum

FIN, SYN, RST, ACK = 1, 2, 4, 16
WINDOW, HOPS = 1000, 64
ICMP = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
# Type and code: "fragmentation needed" or "packet too big", and "port unreachable".
TOO_BIG, UNREACHABLE = {4: (3, 4), 6: (2, 0)}, {4: (3, 3), 6: (1, 4)}
SMALLEST_MTU = {4: 68, 6: 1280}
_MORE_FRAGMENTS = 0x2000
_FRAGMENT_HEADER = 44


def strangers(version: int) -> Iterator[Place]:
    """Addresses and ports of hosts that do not exist."""
    for number in range(1 << 16):
        host = f"{number >> 8}.{number & 0xFF}" if version == 4 else f"{number:x}"
        yield f"198.18.{host}" if version == 4 else f"2001:db8:bad::{host}", 1024 + number % 60_000


def tcp(source: Place, target: Place, flags: int, seq: int, ack: int = 0) -> bytes:
    """Without payload."""
    words = (source[1], target[1], seq % (1 << 32), ack % (1 << 32))
    return _summed(
        source,
        target,
        socket.IPPROTO_TCP,
        struct.pack("!HHIIBBHHH", *words, 5 << 4, flags, WINDOW, 0, 0),
        at=16,
    )


def udp(source: Place, target: Place, text: bytes = b"stray") -> bytes:
    """A datagram."""
    head = struct.pack("!HHHH", source[1], target[1], 8 + len(text), 0)
    return _summed(source, target, socket.IPPROTO_UDP, head + text, at=6)


def error(kind: dict[int, tuple[int, int]], source: str, target: str, quoted: bytes) -> bytes:
    """An ICMP error about a packet, which claims an MTU below the minimum."""
    version = 6 if ":" in source else 4
    head = struct.pack("!BBHI", *kind[version], 0, SMALLEST_MTU[version])
    ends = (source, 0), (target, 0)
    return _summed(*ends, ICMP[version], head + quoted, at=2, pseudo=version == 6)


def fragment(source: str, target: str, number: int, offset: int, body: bytes) -> bytes:
    """One fragment of a datagram, not the last. offset: in bytes."""
    if ":" in source:
        head = struct.pack("!BBHI", socket.IPPROTO_UDP, 0, offset | 1, number)
        return ip(source, target, _FRAGMENT_HEADER, head + body)
    return ip(source, target, socket.IPPROTO_UDP, body, number, _MORE_FRAGMENTS | offset >> 3)


def ip(
    source: str, target: str, protocol: int, body: bytes, number: int = 0, place: int = 0
) -> bytes:
    """The kernel fills in the checksum of IPv4."""
    if ":" in source:
        first = struct.pack("!IHBB", 6 << 28, len(body), protocol, HOPS)
        return first + _packed(source) + _packed(target) + body
    first = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), number, place, HOPS, protocol, 0)
    return first + _packed(source) + _packed(target) + body


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _summed(
    source: Place, target: Place, protocol: int, body: bytes, *, at: int, pseudo: bool = True
) -> bytes:
    """The complete packet, with the transport layer's checksum at this offset."""
    ends = _packed(source[0]) + _packed(target[0])
    covered = (ends + struct.pack("!II", len(body), protocol) if pseudo else b"") + body
    found = struct.pack("!H", checksum(covered + bytes(len(covered) % 2)))
    return ip(source[0], target[0], protocol, body[:at] + found + body[at + 2 :])

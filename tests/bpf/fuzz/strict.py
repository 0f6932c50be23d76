# SPDX-License-Identifier: Apache-2.0
"""Which packets may be translated: a strict reading of the RFCs in plain Python.

It shares only struct lb_tuple with the programs. What it cannot parse must pass unchanged.
"""

from enum import IntEnum
from typing import NamedTuple

ETHERTYPE_AT = 12
TCP, UDP, SCTP, ICMP, ICMPV6 = 6, 17, 132, 1, 58
SYN, RST, ACK = 0x02, 0x04, 0x10

_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"
_MAPPED = bytes(10) + b"\xff\xff"
_HOP_BY_HOP, _ROUTING, _FRAGMENT, _DESTINATION = 0, 43, 44, 60
_EXTENSIONS = {_HOP_BY_HOP, _ROUTING, _FRAGMENT, _DESTINATION}
_MOST_EXTENSIONS = 4
_ERRORS = {4: {3, 11, 12}, 6: {1, 2, 3, 4}}
_ERROR_HEADER, _QUOTED = 8, 8
_TRANSPORTS = (TCP, UDP, SCTP)
_MINIMUM = {TCP: 20, UDP: 8, SCTP: 16, ICMP: 8, ICMPV6: 8}


class Piece(IntEnum):
    """Which part of a datagram a packet is."""

    WHOLE = 0
    FIRST = 1
    LATER = 2


class Headers(NamedTuple):
    """A packet of TCP, UDP or SCTP, or an ICMP error about one.

    Offsets are from the start of the frame; `end` is after the IP packet. `ports` of a later
    fragment are its identification. `quote`: the packet that an ICMP error quotes.
    """

    version: int
    network: int
    transport: int
    end: int
    source: bytes
    target: bytes
    protocol: int
    piece: Piece
    ports: bytes
    ttl: int
    quote: "Headers | None" = None

    @property
    def key(self) -> bytes:
        """struct lb_tuple."""
        return key_of(self.source, self.target, self.ports, self.protocol)

    @property
    def addresses_at(self) -> int:
        """Offset of the two addresses."""
        return self.network + (12 if self.version == 4 else 8)

    @property
    def ttl_at(self) -> int:
        """Offset of the TTL or hop limit."""
        return self.network + (8 if self.version == 4 else 7)

    @property
    def checksum_at(self) -> int:
        """Offset of the transport header's checksum."""
        return self.transport + {TCP: 16, UDP: 6, SCTP: 8}.get(self.protocol, 2)

    @property
    def has_ports(self) -> bool:
        """Whether ports and their checksum are in this packet."""
        return self.piece is not Piece.LATER


def key_of(source: bytes, target: bytes, ports: bytes, protocol: int) -> bytes:
    """struct lb_tuple."""
    return source + target + ports + bytes([protocol, 0, 0, 0])


def reverse(key: bytes) -> bytes:
    """The tuple of the other direction."""
    return key[16:32] + key[:16] + key[34:36] + key[32:34] + key[36:]


def read(frame: bytes, network: int, gso_size: int = 0, kind: bytes = b"") -> Headers | None:
    """The headers of a frame that is valid in every respect that matters to translation.

    `kind`: overrides the frame's ethertype.
    """
    kind = kind or frame[ETHERTYPE_AT : ETHERTYPE_AT + 2]
    if kind == _IPV4:
        found = _read_ipv4(frame, network, len(frame), is_long=gso_size > 0)
    elif kind == _IPV6:
        found = _read_ipv6(frame, network, len(frame), is_long=gso_size > 0)
    else:
        return None
    if found is None or found.piece is Piece.LATER:
        return found if found and found.protocol in _TRANSPORTS else None
    return _with_transport(frame, found, gso_size)


def _read_ipv4(frame: bytes, at: int, limit: int, *, is_long: bool = False) -> Headers | None:
    if at + 20 > limit or frame[at] >> 4 != 4:
        return None
    length = 4 * (frame[at] & 15)
    end = limit if is_long else at + _number(frame, at + 2)
    if length < 20 or end > limit or at + length > end:
        return None
    place, piece = _number(frame, at + 6), Piece.WHOLE
    if place & 0x3FFF:
        piece = Piece.LATER if place & 0x1FFF else Piece.FIRST
    return Headers(
        version=4,
        network=at,
        transport=at + length,
        end=end,
        source=_MAPPED + frame[at + 12 : at + 16],
        target=_MAPPED + frame[at + 16 : at + 20],
        protocol=frame[at + 9],
        piece=piece,
        ports=frame[at + 4 : at + 6] + bytes(2),
        ttl=frame[at + 8],
    )


def _read_ipv6(frame: bytes, at: int, limit: int, *, is_long: bool = False) -> Headers | None:
    if at + 40 > limit or frame[at] >> 4 != 6:
        return None
    end = limit if is_long else at + 40 + _number(frame, at + 4)
    source, target = frame[at + 8 : at + 24], frame[at + 24 : at + 40]
    if end > limit or _MAPPED in (source[:12], target[:12]):
        return None
    found = Headers(
        version=6,
        network=at,
        transport=at + 40,
        end=end,
        source=source,
        target=target,
        protocol=frame[at + 6],
        piece=Piece.WHOLE,
        ports=bytes(4),
        ttl=frame[at + 7],
    )
    return _behind_extensions(frame, found) if found.protocol in _EXTENSIONS else found


def _behind_extensions(frame: bytes, found: Headers) -> Headers | None:
    at, protocol = found.transport, found.protocol
    for _ in range(_MOST_EXTENSIONS):
        if at + 8 > found.end:
            return None
        length = 8 if protocol == _FRAGMENT else 8 * (frame[at + 1] + 1)
        if at + length > found.end or (protocol == _ROUTING and frame[at + 3]):
            return None
        this, protocol = protocol, frame[at]
        if this == _FRAGMENT:
            return _in_pieces(frame, found, at)
        at += length
        if protocol not in _EXTENSIONS:
            return found._replace(transport=at, protocol=protocol)
    return None


def _in_pieces(frame: bytes, found: Headers, at: int) -> Headers:
    place = _number(frame, at + 2)
    piece = Piece.LATER if place & 0xFFF8 else Piece.FIRST if place & 1 else Piece.WHOLE
    ports = frame[at + 4 : at + 8]
    return found._replace(transport=at + 8, protocol=frame[at], piece=piece, ports=ports)


def _with_transport(frame: bytes, found: Headers, gso_size: int) -> Headers | None:
    at, protocol = found.transport, found.protocol
    if at + _MINIMUM.get(protocol, len(frame)) > found.end:
        return None
    if protocol in (ICMP, ICMPV6):
        return _with_quote(frame, found)
    if not (gso_size and protocol == UDP) and not _has_right_length(frame, found):
        return None
    return found._replace(ports=frame[at : at + 4])


def _has_right_length(frame: bytes, found: Headers) -> bool:
    """Of a first fragment, the rest is missing; SCTP has no length field."""
    if found.protocol == SCTP:
        return True
    at = found.transport
    least = _MINIMUM[found.protocol]
    length = 4 * (frame[at + 12] >> 4) if found.protocol == TCP else _number(frame, at + 4)
    return length >= least and (found.piece is Piece.FIRST or at + length <= found.end)


def _with_quote(frame: bytes, found: Headers) -> Headers | None:
    is_right = found.protocol == (ICMP if found.version == 4 else ICMPV6)
    at = found.transport
    if not is_right or found.piece is not Piece.WHOLE or frame[at] not in _ERRORS[found.version]:
        return None
    inner = at + _ERROR_HEADER
    quote = _read_quote(frame, inner, found)
    if quote is None or quote.source != found.target:
        return None
    return found._replace(ports=frame[at : at + 4], quote=quote)


def _read_quote(frame: bytes, at: int, error: Headers) -> Headers | None:
    """The quoted packet. Its length field does not count: it may have been truncated."""
    read_one = _read_ipv4 if error.version == 4 else _read_ipv6
    length = 20 if error.version == 4 else 40
    found = read_one(frame, at, error.end, is_long=True)
    if found is None or found.piece is not Piece.WHOLE or found.protocol not in _TRANSPORTS:
        return None
    if found.transport != at + length or found.transport + _QUOTED > error.end:
        return None
    return found._replace(ports=frame[found.transport : found.transport + 4])


def _number(frame: bytes, at: int) -> int:
    return int.from_bytes(frame[at : at + 2], "big")

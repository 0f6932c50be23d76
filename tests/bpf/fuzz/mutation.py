# SPDX-License-Identifier: Apache-2.0
"""Makes a valid packet hostile: cut, stretched, mixed with others, odd values in critical
fields.
"""

from collections.abc import Callable
from random import Random

from tests.bpf.fuzz.strict import UDP, read
from tests.bpf.fuzz.translation import residue

Mutation = Callable[[Random, bytearray, int], None]

# A test-run rejects frames without a complete IP header.
_SHORTEST, _SHORTEST_IPV6, _LONGEST = 35, 54, 2000
_HEADERS = 120
# Offset and size of the critical fields, in the IP header and after it.
_FIELDS = {
    4: [(0, 1), (1, 1), (2, 2), (4, 2), (6, 2), (8, 1), (9, 1), (10, 2), (12, 4), (16, 4), (19, 1)],
    6: [
        (0, 1),
        (1, 1),
        (4, 2),
        (6, 1),
        (7, 1),
        (8, 16),
        (24, 16),
        (39, 1),
        (40, 1),
        (41, 1),
        (42, 2),
    ],
}
_TRANSPORT_FIELDS = [(0, 2), (2, 2), (4, 2), (4, 4), (6, 2), (8, 4), (12, 1), (13, 1), (16, 2)]
_NUMBERS = [0, 1, 4, 5, 7, 8, 15, 19, 20, 28, 39, 40, 60, 80, 127, 128, 255, 1024, 8080, 0xFFFF]
_PROTOCOLS = [0, 1, 6, 17, 43, 44, 50, 51, 58, 59, 60, 132, 135]
_ETHERTYPES = [b"\x08\x00", b"\x86\xdd", b"\x81\x00", b"\x08\x06", b"\x88\xa8"]


def mutate(random: Random, frame: bytes, other: bytes, network: int) -> bytes:
    """The frame after some mutations; `other`: a frame to splice from."""
    hostile = bytearray(frame)
    if random.random() < 0.1:
        _splice(random, hostile, other)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 5))):
        random.choice(_MUTATIONS)(random, hostile, network)
        _pad(hostile, _SHORTEST)
    del hostile[_LONGEST:]
    if hostile[12:14] == b"\x86\xdd":
        _pad(hostile, _SHORTEST_IPV6)
    if random.random() < 0.3:
        _mend(hostile, network)
    return bytes(hostile)


def _pad(frame: bytearray, least: int) -> None:
    frame += bytes(max(0, least - len(frame)))


def _splice(random: Random, frame: bytearray, other: bytes) -> None:
    cut = random.randrange(_SHORTEST, min(_HEADERS, len(frame), len(other)))
    frame[cut:] = other[cut:]


def _bytes(random: Random, frame: bytearray, network: int) -> None:
    for _ in range(random.randint(1, 4)):
        frame[random.randrange(network, min(_HEADERS, len(frame)))] = random.randrange(256)


def _bit(random: Random, frame: bytearray, network: int) -> None:
    frame[random.randrange(network, min(_HEADERS, len(frame)))] ^= 1 << random.randrange(8)


def _field(random: Random, frame: bytearray, network: int) -> None:
    version = 6 if frame[network] >> 4 == 6 else 4
    at, size = random.choice(_FIELDS[version])
    _set(random, frame, network + at, size)


def _transport_field(random: Random, frame: bytearray, network: int) -> None:
    is_ipv6 = frame[network] >> 4 == 6
    start = network + (40 if is_ipv6 else 4 * (frame[network] & 15))
    at, size = random.choice(_TRANSPORT_FIELDS)
    _set(random, frame, start + at, size)


def _set(random: Random, frame: bytearray, at: int, size: int) -> None:
    if at + size <= len(frame):
        old = int.from_bytes(frame[at : at + size], "big")
        new = random.choice((random.choice(_NUMBERS), old + 1, old - 1, old ^ 0x2000, ~old))
        if random.random() < 0.2:
            new = random.getrandbits(8 * size)
        frame[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "big")


def _protocol(random: Random, frame: bytearray, network: int) -> None:
    frame[network + (6 if frame[network] >> 4 == 6 else 9)] = random.choice(_PROTOCOLS)


def _ttl(random: Random, frame: bytearray, network: int) -> None:
    frame[network + (7 if frame[network] >> 4 == 6 else 8)] = random.choice((0, 1, 2, 255))


def _ethertype(random: Random, frame: bytearray, network: int) -> None:
    if network:
        frame[12:14] = random.choice(_ETHERTYPES)


def _tag(random: Random, frame: bytearray, network: int) -> None:
    if network:
        frame[12:12] = b"\x81\x00" + random.getrandbits(16).to_bytes(2, "big")


def _shorter(random: Random, frame: bytearray, _network: int) -> None:
    del frame[max(_SHORTEST, random.randint(0, len(frame))) :]


def _longer(random: Random, frame: bytearray, _network: int) -> None:
    frame += random.randbytes(random.randint(1, 64))


def _gap(random: Random, frame: bytearray, network: int) -> None:
    at = random.randrange(network, min(_HEADERS, len(frame)))
    del frame[at : at + random.randint(1, 8)]


def _stuffing(random: Random, frame: bytearray, network: int) -> None:
    at = random.randrange(network, min(_HEADERS, len(frame)))
    frame[at:at] = random.randbytes(random.choice((1, 2, 4, 8)))


def _extension(random: Random, frame: bytearray, network: int) -> None:
    """Another IPv6 extension header."""
    if frame[network] >> 4 != 6 or network + 40 > len(frame):
        return
    units = random.choice((0, 0, 0, 1, 5))
    body = bytes([frame[network + 6], units]) + random.randbytes(6 + 8 * units)
    if random.random() < 0.7:
        body = body[:2] + bytes(len(body) - 2)
    frame[network + 6] = random.choice((0, 43, 44, 60, 51))
    frame[network + 40 : network + 40] = body


def _turn(_random: Random, frame: bytearray, network: int) -> None:
    """Source and target swap places."""
    at, size = (8, 16) if frame[network] >> 4 == 6 else (12, 4)
    start = network + at
    both = frame[start : start + 2 * size]
    frame[start : start + 2 * size] = both[size:] + both[:size]


def _fragment(random: Random, frame: bytearray, network: int) -> None:
    if frame[network] >> 4 == 4:
        frame[network + 6 : network + 8] = random.choice(
            (b"\x20\x00", b"\x00\x01", b"\x20\x14", b"\x40\x00", b"\x1f\xff", b"\x80\x00")
        )


def _whole_length(_random: Random, frame: bytearray, network: int) -> None:
    """The IP header's length field matches the frame."""
    if frame[network] >> 4 == 6:
        frame[network + 4 : network + 6] = max(0, len(frame) - network - 40).to_bytes(2, "big")
    else:
        frame[network + 2 : network + 4] = (len(frame) - network).to_bytes(2, "big")


_MUTATIONS: list[Mutation] = [
    *(_bytes, _bit, _field, _field, _field, _transport_field, _transport_field, _protocol),
    *(_ttl, _ethertype, _tag, _shorter, _longer, _gap, _stuffing, _extension, _turn, _fragment),
    _whole_length,
]


def _mend(frame: bytearray, network: int) -> None:
    """Recompute the checksums of a packet that is otherwise valid."""
    headers = read(bytes(frame), network)
    if headers is None or not headers.has_ports:
        return
    at = network + 10
    if headers.version == 4:
        frame[at : at + 2] = bytes(2)
        header = frame[network : network + 4 * (frame[network] & 15)]
        frame[at : at + 2] = _complement(residue(bytes(header)))
    at = headers.checksum_at
    if headers.quote or (headers.protocol == UDP and not any(frame[at : at + 2])):
        return
    frame[at : at + 2] = bytes(2)
    body = bytes(frame[headers.transport : headers.end])
    start, size = headers.addresses_at, 8 if headers.version == 4 else 32
    pseudo = bytes(frame[start : start + size]) + len(body).to_bytes(4, "big")
    pseudo += headers.protocol.to_bytes(4, "big")
    frame[at : at + 2] = _complement(residue(pseudo + body))


def _complement(total: int) -> bytes:
    return (0xFFFF - total).to_bytes(2, "big")

# SPDX-License-Identifier: Apache-2.0
"""What translation changes in a packet, and what it must not change.

A checksum is compared together with everything it covers: their sum must not change, so a right
checksum stays right and a wrong one stays wrong.
"""

from collections.abc import Iterator

from tests.bpf.fuzz.strict import ICMP, ICMPV6, UDP, Headers

_ERROR_TYPES = {4: {(3, 1), (3, 3), (3, 4), (11, 0)}, 6: {(1, 0), (1, 4), (2, 0), (3, 0)}}
_WHOLE = 0xFFFF
# The least that an error quotes, however long the headers in front of the transport header are.
_QUOTED = 68


def residue(covered: bytes) -> int:
    """The Internet checksum's residue, 0 if the checksum is right."""
    return int.from_bytes(covered + bytes(len(covered) % 2), "big") % _WHOLE


def check_translation(frame: bytes, out: bytes, headers: Headers, *, leaves: bool) -> None:
    """Of a TCP or UDP packet."""
    places = [*_network_places(headers), *_transport_places(frame, headers)]
    _check_rest(frame, out, places, leaves=leaves)
    _check_ttl(frame, out, headers, leaves=leaves)
    _check_network_sum(frame, out, headers)
    if headers.has_ports:
        _check_transport_sum(frame, out, headers)


def check_error(frame: bytes, out: bytes, headers: Headers, *, leaves: bool) -> None:
    """Of an ICMP error, and of the packet that it quotes."""
    quote = headers.quote
    assert quote
    places = [*_network_places(headers), (headers.checksum_at, 2), *_network_places(quote)]
    places += _transport_places(frame, quote)
    _check_rest(frame, out, places, leaves=leaves)
    _check_ttl(frame, out, headers, leaves=leaves)
    assert frame[quote.ttl_at] == out[quote.ttl_at]
    for each in (headers, quote):
        _check_network_sum(frame, out, each)
        _check_transport_sum(frame, out, each)


def check_answer(frame: bytes, out: bytes, headers: Headers) -> None:
    """Of an ICMP error that reports why the frame was not forwarded."""
    at = headers.network
    length = 20 if headers.version == 4 else 40
    icmp, quote = at + length, at + length + 8
    end = at + _length(out, headers)
    assert out[at] >> 4 == headers.version
    assert end <= len(out)
    assert not any(out[end:])
    assert (out[icmp], out[icmp + 1]) in _ERROR_TYPES[headers.version]
    assert out[quote:end] == frame[at : at + end - quote]
    assert end - quote >= min(headers.transport - at + 8, _QUOTED)
    answer = headers._replace(
        transport=icmp, end=end, protocol=ICMP if headers.version == 4 else ICMPV6
    )
    half = (answer.addresses_at, 4 if headers.version == 4 else 16)
    before, after = _two(frame, *half), _two(out, *half)
    assert after == before[::-1]
    assert _network_sum(out, answer) == 0
    assert _transport_sum(out, answer) == 0


def _two(frame: bytes, at: int, size: int) -> tuple[bytes, bytes]:
    return frame[at : at + size], frame[at + size : at + 2 * size]


def _length(out: bytes, headers: Headers) -> int:
    at = headers.network
    if headers.version == 4:
        return int.from_bytes(out[at + 2 : at + 4], "big")
    return 40 + int.from_bytes(out[at + 4 : at + 6], "big")


def _network_places(headers: Headers) -> Iterator[tuple[int, int]]:
    yield headers.ttl_at, 1
    if headers.version == 4:
        yield headers.network + 10, 2
    yield headers.addresses_at, 8 if headers.version == 4 else 32


def _transport_places(frame: bytes, headers: Headers) -> Iterator[tuple[int, int]]:
    if headers.has_ports:
        yield headers.transport, 4
        if _has_sum(frame, headers):
            yield headers.checksum_at, 2


def _has_sum(frame: bytes, headers: Headers) -> bool:
    """Whether the checksum is within the packet; with UDP, zero means none."""
    at = headers.checksum_at
    return at + 2 <= headers.end and (headers.protocol != UDP or any(frame[at : at + 2]))


def _check_rest(frame: bytes, out: bytes, places: list[tuple[int, int]], *, leaves: bool) -> None:
    """Everything else is unchanged, but for the MACs of a frame that leaves this node."""
    before, after = bytearray(frame), bytearray(out)
    if leaves:
        places = [(0, 12), *places] if places[0][0] > 14 else places
    for at, size in places:
        before[at : at + size] = after[at : at + size] = bytes(size)
    assert before == after, "another field changed"


def _check_ttl(frame: bytes, out: bytes, headers: Headers, *, leaves: bool) -> None:
    before, after = frame[headers.ttl_at], out[headers.ttl_at]
    assert after == before or (leaves and after == before - 1 > 0)


def _check_network_sum(frame: bytes, out: bytes, headers: Headers) -> None:
    assert _network_sum(frame, headers) == _network_sum(out, headers), "IPv4 checksum"


def _network_sum(frame: bytes, headers: Headers) -> int:
    if headers.version == 6:
        return 0
    at = headers.network
    return residue(frame[at : at + 4 * (frame[at] & 15)])


def _check_transport_sum(frame: bytes, out: bytes, headers: Headers) -> None:
    if not _has_sum(frame, headers):
        return
    assert _transport_sum(frame, headers) == _transport_sum(out, headers), "transport checksum"
    if headers.protocol == UDP:
        assert any(out[headers.checksum_at : headers.checksum_at + 2]), "the checksum was removed"


def _transport_sum(frame: bytes, headers: Headers) -> int:
    """Including the pseudo header, which ICMP has in IPv6 only."""
    body = frame[headers.transport : headers.end]
    if headers.protocol == ICMP:
        return residue(body)
    at, size = headers.addresses_at, 8 if headers.version == 4 else 32
    rest = len(body).to_bytes(4, "big") + headers.protocol.to_bytes(4, "big")
    return residue(frame[at : at + size] + rest + body)

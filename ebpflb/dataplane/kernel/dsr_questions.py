# SPDX-License-Identifier: Apache-2.0
"""Asks other nodes whether they take part in DSR's tunnels.

A question is the tunnel header, marked as a control packet and with no payload; the program on the
other node sends it back as the answer (bpf/tunnel_end.h). Anybody can send to these sockets:
whatever is not an answer is ignored.
"""

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ebpflb.model.address import Address, Family, family_of, format_address, parse_address

# struct lb_geneve: words of options, flags, protocol, VNI; class, type and words of the one option;
# a nonce instead of the pod; whether it is a question, whether it is an answer; the key.
_HEADER = struct.Struct("!BBHIHBB16sHH8s")
_OPTIONS, _DATA = 8, 7
NO_KEY = bytes(8)
"""Of a cluster without keys."""
_CONTROL_AND_CRITICAL = 0xC0
_PROTOCOL = {Family.IPV4: 0x0800, Family.IPV6: 0x86DD}
_CLASS, _TYPE = 0xFF6C, 0x81
_SOCKET = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
# Per call, so that a flood of packets does not block the loop.
_MOST_AT_ONCE = 128


class DsrAnswer(NamedTuple):
    """Claimed sender and nonce: only those who know the nonce can have sent it."""

    address: Address
    nonce: bytes


class DsrSockets:
    """One socket per family, bound to this node's address. Does not block.

    For one thread, and the network namespace in which it asks the first question.
    """

    def __init__(self, port: int) -> None:
        """`port`: the port of the tunnels on all nodes."""
        self._port = port
        self._sockets: dict[Family, tuple[Address, socket.socket]] = {}

    def close(self) -> None:
        for _, each in self._sockets.values():
            each.close()
        self._sockets = {}

    def ask(self, own: Address | None, address: Address, nonce: bytes, key: bytes = NO_KEY) -> str:
        """Send a question from this node's own address; returns what prevents it, or ""."""
        family = family_of(address)
        try:
            asking = self._socket(family, own)
            asking.sendto(
                _header(family, nonce, key, is_answer=False), (format_address(address), self._port)
            )
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def answers(self) -> Iterator[DsrAnswer]:
        """The answers received so far."""
        for family, (_, asking) in self._sockets.items():
            for _ in range(_MOST_AT_ONCE):
                try:
                    packet, source = asking.recvfrom(_HEADER.size + 1)
                except OSError:
                    break
                if source[1] == self._port and len(packet) == _HEADER.size:
                    *_, nonce, _, _, key = _HEADER.unpack(packet)
                    if packet == _header(family, nonce, key, is_answer=True):
                        yield DsrAnswer(parse_address(source[0].partition("%")[0]), nonce)

    def _socket(self, family: Family, own: Address | None) -> socket.socket:
        bound, found = self._sockets.get(family, (None, None))
        if found and bound == own:
            return found
        if found:
            del self._sockets[family]
            found.close()
        if own is None:
            raise OSError(f"this node has no {family.text} address")
        found = _bound_socket(family, own, self._port)
        self._sockets[family] = own, found
        return found


def _bound_socket(family: Family, own: Address, unwanted: int) -> socket.socket:
    """On any port except that of the tunnels, where answers would look like tunneled packets."""
    made = socket.socket(_SOCKET[family], socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        made.bind((format_address(own), 0))
        if made.getsockname()[1] != unwanted:
            return made
        other = _bound_socket(family, own, unwanted)
    except OSError:
        made.close()
        raise
    made.close()
    return other


def _header(family: Family, nonce: bytes, key: bytes, *, is_answer: bool) -> bytes:
    return _HEADER.pack(
        _OPTIONS,
        _CONTROL_AND_CRITICAL,
        _PROTOCOL[family],
        0,
        _CLASS,
        _TYPE,
        _DATA,
        nonce,
        not is_answer,
        is_answer,
        key,
    )

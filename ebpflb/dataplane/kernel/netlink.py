# SPDX-License-Identifier: Apache-2.0
"""Netlink dumps as bytes, for data that is read too often or is too large for pyroute2.

pyroute2 takes 15 to 25 times as long per device or connection, and it treats a dump as complete
even if the kernel ended it with an error or marked it as inconsistent. The figures are in
docs/development/decisions/agent.md. `Rtnetlink.iproute()` is pyroute2, for everything that is rare.
"""

import contextlib
import errno
import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Self

_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x4, 0x300, 0x10
_NLM_F_CREATE = 0x400
# NLMSG_ERROR, which is also an acknowledgement, and NLMSG_DONE.
_ENDS = (2, 3)
_ATTRIBUTE_TYPE = 0x3FFF
_RECEIVE_BYTES = 1 << 16
_DUMP_TRIES = 10

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")


class Message(NamedTuple):
    """One netlink message: its type and flags, and the payload after the header."""

    type: int
    flags: int
    sequence: int
    body: bytes


class Netlink:
    """A socket for one thread, in that thread's network namespace. Errors are OSError."""

    def __init__(self, protocol: int) -> None:
        self._sequence = itertools.count(1)
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; further calls do nothing."""
        self._socket.close()

    def request(self, kind: int, body: bytes) -> list[bytes]:
        """Send one request and wait for its acknowledgement; returns the messages before it."""
        return self._request(kind, _NLM_F_ACK, body)

    def create(self, kind: int, body: bytes) -> None:
        """Create an object, or change the existing one."""
        self._request(kind, _NLM_F_ACK | _NLM_F_CREATE, body)

    def _request(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        sequence = self._send(kind, flags, body)
        found: list[Message] = []
        while not any(message.type in _ENDS for message in found):
            found += self._receive(sequence)
        return [message.body for message in found if message.type not in _ENDS]

    def stream(self, kind: int, body: bytes) -> Iterator[list[bytes]]:
        """All objects of a kind, one datagram at a time, however many there are.

        InterruptedError at the end if they changed meanwhile, so that some may be missing.
        """
        sequence = self._send(kind, _NLM_F_DUMP, body)
        ended = interrupted = False
        while not ended:
            messages = self._receive(sequence)
            interrupted = interrupted or any(each.flags & _NLM_F_DUMP_INTR for each in messages)
            ended = any(each.type in _ENDS for each in messages)
            yield [each.body for each in messages if each.type not in _ENDS]
        if interrupted:
            raise InterruptedError(errno.EINTR, "the objects changed while they were read")

    def dump(self, kind: IntEnum, body: bytes) -> list[bytes]:
        """All objects of a kind. If they change meanwhile it is repeated, at most 10 times."""
        for _ in range(_DUMP_TRIES):
            with contextlib.suppress(InterruptedError):
                return [each for some in self.stream(kind, body) for each in some]
        raise OSError(errno.EINTR, f"{kind.name} dump kept changing in {_DUMP_TRIES} attempts")

    def _send(self, kind: int, flags: int, body: bytes) -> int:
        sequence = next(self._sequence)
        length = _HEADER.size + len(body)
        header = _HEADER.pack(length, kind, _NLM_F_REQUEST | flags, sequence, 0)
        self._socket.send(header + body)
        return sequence

    def _receive(self, sequence: int) -> list[Message]:
        """The answers to a request in the next datagram; OSError if one of them is an error."""
        datagram = self._socket.recv(_RECEIVE_BYTES)
        found = [each for each in _messages(datagram) if each.sequence == sequence]
        for message in found:
            if message.type in _ENDS and (code := -_ERRNO.unpack_from(message.body)[0]):
                raise OSError(code, os.strerror(code))
        return found


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, with its padding."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def attributes(body: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes from `offset` on; a repeated one keeps its last value."""
    found = {}
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _ATTRIBUTE_TYPE] = body[offset + _ATTRIBUTE.size : offset + length]
        offset += length + -length % 4
    return found


def text(payload: bytes) -> str:
    """A zero-terminated string attribute."""
    return payload.split(b"\0", 1)[0].decode(errors="replace")


def number(payload: bytes) -> int:
    """An unsigned integer attribute in host byte order, whatever its width."""
    return int.from_bytes(payload, sys.byteorder)


def _messages(datagram: bytes) -> Iterator[Message]:
    offset = 0
    while offset + _HEADER.size <= len(datagram):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        yield Message(kind, flags, sequence, datagram[offset + _HEADER.size : offset + length])
        offset += length + -length % 4

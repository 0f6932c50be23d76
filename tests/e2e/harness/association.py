# SPDX-License-Identifier: Apache-2.0
"""Run inside a namespace: enough of SCTP for a handshake over raw sockets, without the kernel's
SCTP.

Arguments: "answer", IP version, port, name; or "ask", address, port, own port. The first answers
INIT and COOKIE ECHO with its name until it is killed. The second prints the names that answered
both.
"""

import socket
import struct
import sys
from typing import NamedTuple

IPPROTO_SCTP = 132
INIT, INIT_ACK, COOKIE_ECHO, COOKIE_ACK = 1, 2, 10, 11
SECONDS = 20.0
_HEADER = struct.Struct("!HH4s4s")
_CHUNK = struct.Struct("!BBH")
_POLYNOMIAL = 0x82F63B78
# Each side asks the other one to use the same tag, after the header of these chunks.
_TAG = bytes.fromhex("00000007")
_WITH_TAG = (INIT, INIT_ACK)


class Packet(NamedTuple):
    """One chunk with a text in it."""

    source: int
    target: int
    chunk: int
    text: bytes


def crc32c(covered: bytes) -> bytes:
    """In the byte order of a packet."""
    value = 0xFFFFFFFF
    for byte in covered:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return struct.pack("<I", value ^ 0xFFFFFFFF)


def packed(packet: Packet) -> bytes:
    """With its checksum."""
    text = (_TAG if packet.chunk in _WITH_TAG else b"") + packet.text
    chunk = _CHUNK.pack(packet.chunk, 0, _CHUNK.size + len(text)) + text
    tag = bytes(4) if packet.chunk == INIT else _TAG
    plain = _HEADER.pack(packet.source, packet.target, tag, bytes(4)) + chunk
    return plain[:8] + crc32c(plain) + plain[12:]


def unpacked(content: bytes) -> Packet | None:
    """None if it is damaged."""
    source, target, _, checksum = _HEADER.unpack_from(content)
    if checksum != crc32c(content[:8] + bytes(4) + content[12:]):
        return None
    kind, _, _ = _CHUNK.unpack_from(content, _HEADER.size)
    text = content[_HEADER.size + _CHUNK.size :]
    return Packet(source, target, kind, text[len(_TAG) :] if kind in _WITH_TAG else text)


def opened(version: int) -> socket.socket:
    """A raw socket."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_RAW, IPPROTO_SCTP)


def received(raw: socket.socket) -> tuple[str, Packet | None]:
    """The sender and its packet."""
    content, sender = raw.recvfrom(65536)
    header = (content[0] & 15) * 4 if raw.family == socket.AF_INET else 0
    return sender[0], unpacked(content[header:])


def answer(version: int, port: int, name: bytes) -> None:
    """Answer for ever."""
    replies = {INIT: INIT_ACK, COOKIE_ECHO: COOKIE_ACK}
    with opened(version) as raw:
        print("ready", flush=True)
        while True:
            sender, packet = received(raw)
            if packet and packet.target == port and packet.chunk in replies:
                back = Packet(port, packet.source, replies[packet.chunk], name + packet.text)
                raw.sendto(packed(back), (sender, 0))


def ask(address: str, port: int, own: int) -> None:
    """One handshake."""
    with opened(6 if ":" in address else 4) as raw:
        raw.settimeout(SECONDS)
        for chunk, wanted in ((INIT, INIT_ACK), (COOKIE_ECHO, COOKIE_ACK)):
            raw.sendto(packed(Packet(own, port, chunk, b" odd")), (address, 0))
            while True:
                sender, packet = received(raw)
                if sender == address and packet and packet[:3] == (port, own, wanted):
                    break
            print(packet.text.decode())


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        answer(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode())
    else:
        ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

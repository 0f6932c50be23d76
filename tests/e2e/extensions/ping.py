# SPDX-License-Identifier: Apache-2.0
"""ICMP echo by a raw socket, as ping(8) sends it."""

import os
import socket
import struct
import time

from ebpflb.lab import Member
from tests.e2e.harness.questions import SILENCE_SECONDS

_HEADER = struct.Struct("!BBHHH")
_BODY = bytes(range(56))
_PATIENCE = 10.0
# Request and answer.
_TYPES = {4: (8, 0), 6: (128, 129)}
_MOST_BYTES = 2048
_IPV4_HEADER = 20


def is_pinged(member: Member, address: str, version: int, patience: float = _PATIENCE) -> bool:
    """Whether the right answer with a correct checksum comes from the address."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    with member.entered(), socket.socket(family, socket.SOCK_RAW, protocol) as made:
        made.sendto(_request(version), (address, 0))
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            made.settimeout(left)
            try:
                packet, (source, *_) = made.recvfrom(_MOST_BYTES)
            except TimeoutError:
                return False
            if source == address and _is_answer(packet, version):
                return True
    return False


def is_ping_unanswered(member: Member, address: str, version: int) -> bool:
    return not is_pinged(member, address, version, SILENCE_SECONDS)


def _request(version: int) -> bytes:
    """The kernel writes the checksum of ICMPv6, and verifies it in answers."""
    kind, own = _TYPES[version][0], os.getpid() & 0xFFFF
    zero = _HEADER.pack(kind, 0, 0, own, 1) + _BODY
    checksum = ~_sum(zero) & 0xFFFF if version == 4 else 0
    return _HEADER.pack(kind, 0, checksum, own, 1) + _BODY


def _is_answer(packet: bytes, version: int) -> bool:
    message = packet[_IPV4_HEADER:] if version == 4 else packet
    kind, code, _, own, sequence = _HEADER.unpack_from(message)
    wanted = _TYPES[version][1], 0, os.getpid() & 0xFFFF, 1
    is_correct = version == 6 or _sum(message) == 0xFFFF
    is_same = message[_HEADER.size :] == _BODY
    return is_correct and is_same and (kind, code, own, sequence) == wanted


def _sum(message: bytes) -> int:
    total = sum(struct.unpack(f"!{len(message) // 2}H", message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total)

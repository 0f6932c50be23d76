# SPDX-License-Identifier: Apache-2.0
"""Run inside a member: sends TCP packets far out of the window, and counts the replies.

Arguments: IP version, the member's address and port, the other side's address and port. Prints the
number of resets and of plain ACKs that came back. With a further argument, a sequence number, the
packets are resets with numbers from all over the range, but far from that one, and nothing is
printed.
"""

import socket
import struct
import sys
import time

PACKETS = 5
SECONDS = 1.5
RST, PSH, ACK = 4, 8, 16
_TCP = struct.Struct("!HHIIBBHHH")
_FLAGS_AT = 13
FAR = 0x7FFFFFFF


End = tuple[str, int]


def segment(version: int, source: End, target: End, seq: int) -> bytes:
    """Data outside the receiver's window; the kernel fills in the checksum of IPv6."""
    plain = _TCP.pack(source[1], target[1], seq, 1, 5 << 4, PSH | ACK, 1000, 0, 0) + b"far away"
    if version == 6:
        return plain
    ends = socket.inet_aton(source[0]) + socket.inet_aton(target[0])
    pseudo = ends + struct.pack("!HH", socket.IPPROTO_TCP, len(plain))
    return plain[:16] + struct.pack("!H", checksum(pseudo + plain)) + plain[18:]


def checksum(covered: bytes) -> int:
    """The checksum of RFC 1071 over an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def main() -> None:
    """Send, listen, print."""
    version, own, other = int(sys.argv[1]), sys.argv[2:4], sys.argv[4:6]
    source, target = (own[0], int(own[1])), (other[0], int(other[1]))
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        if version == 6:
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_CHECKSUM, 16)
        for number in range(PACKETS):
            raw.sendto(segment(version, source, target, FAR * number // PACKETS), (target[0], 0))
        print(*heard(raw, version, source[1], target[1]))


def heard(raw: socket.socket, version: int, own: int, port: int) -> tuple[int, int]:
    """Resets and ACKs without data from the client's port."""
    resets = acknowledged = 0
    deadline = time.monotonic() + SECONDS
    while True:
        # Even when the time is up, packets that have arrived are counted.
        raw.settimeout(max(0.0, deadline - time.monotonic()))
        try:
            packet = raw.recv(65536)
        except (TimeoutError, BlockingIOError):
            break
        header = packet[(packet[0] & 15) * 4 if version == 4 else 0 :]
        if struct.unpack_from("!HH", header) == (port, own):
            resets += bool(header[_FLAGS_AT] & RST)
            acknowledged += header[_FLAGS_AT] == ACK
    return resets, acknowledged


if __name__ == "__main__":
    main()

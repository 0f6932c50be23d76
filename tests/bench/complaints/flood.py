# SPDX-License-Identifier: Apache-2.0
"""Sends SYNs from this address, each from another port, and completes no handshake.

Arguments: address, port, SYNs per second, seconds. Prints "ready", and at the end how many were
sent a second. IPv4; standard library only.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from itertools import cycle
from typing import Any

_ETH_P_IP, _SYN = 0x0800, 0x02
# linux/if_packet.h
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_PORTS = range(1024, 61_024)
_BATCH = 100


class _Buffer(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint32),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    )


def main(address: str, port: str, rate: str, seconds: str) -> None:
    """Send as many as asked; none is made up for that came too late."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((address, int(port)))
        asking.send(b"")
        source = asking.getsockname()[0]
    device, frame = _next_hop(address)
    batches = _Batches([frame + _syn(source, address, each, int(port)) for each in _PORTS])
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        sock.bind((device, _ETH_P_IP))
        print("ready", flush=True)
        sent = _send(sock, batches, int(rate), float(seconds))
    print(round(sent / float(seconds)))


def _next_hop(address: str) -> tuple[str, bytes]:
    """The device to the address, and the Ethernet header. The kernel has just asked for the MAC."""
    (route,) = _ip("route", "get", address)
    device = str(route["dev"])
    (link,), hops = _ip("link", "show", "dev", device), _ip("-4", "neigh", "show", "dev", device)
    (hop,) = (each for each in hops if each["dst"] == route.get("gateway", address))
    macs = [bytes.fromhex(each.replace(":", "")) for each in (hop["lladdr"], link["address"])]
    return device, b"".join(macs) + _ETH_P_IP.to_bytes(2, "big")


def _ip(*arguments: str) -> list[dict[str, Any]]:
    shown = subprocess.run(["ip", "-j", *arguments], check=True, stdout=subprocess.PIPE)
    return list(json.loads(shown.stdout))


class _Batches:
    """Prepared system calls, which send _BATCH packets each."""

    def __init__(self, frames: list[bytes]) -> None:
        self._kept = [ctypes.create_string_buffer(each, len(each)) for each in frames]
        self.all = [
            self._batch(self._kept[first : first + _BATCH])
            for first in range(0, len(frames), _BATCH)
        ]

    def _batch(self, packets: list[ctypes.Array[ctypes.c_char]]) -> ctypes.Array[_Message]:
        batch = (_Message * len(packets))()
        for message, packet in zip(batch, packets, strict=True):
            message.buffers = ctypes.pointer(_Buffer(ctypes.addressof(packet), len(packet)))
            message.count = 1
        return batch


def _send(sock: socket.socket, batches: _Batches, rate: int, seconds: float) -> int:
    sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg
    started = time.monotonic()
    sent = 0
    for batch in cycle(batches.all):
        now = time.monotonic() - started
        if now >= seconds:
            return sent
        if (early := sent / rate - now) > 0:
            time.sleep(early)
        done = sendmmsg(sock.fileno(), ctypes.byref(batch), len(batch), 0)
        if done < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        sent += done
    return sent


def _syn(source: str, target: str, sport: int, dport: int) -> bytes:
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    tcp = struct.pack("!HHIIBBHHH", sport, dport, sport, 0, 5 << 4, _SYN, 64240, 0, 0)
    pseudo = ends + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", _checksum(pseudo + tcp)) + tcp[18:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0)
    return head + ends + tcp


def _checksum(text: bytes) -> int:
    total = sum(struct.unpack(f"!{len(text) // 2}H", text))
    total = (total & 0xFFFF) + (total >> 16)
    return int(total + (total >> 16) & 0xFFFF) ^ 0xFFFF


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Has whatever arrives at this pod arrive later: a pod far away. Arguments: device, milliseconds.

Runs inside the pod. Its addresses, MAC address and routes move to a tap device; frames are copied
between this and the pod's own device, where the kernel ignores them because of the MAC address.
Prints "ready".
"""

import fcntl
import heapq
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_TAP, _OTHER_MAC = "far0", "02:00:00:00:fa:a0"
# linux/if_tun.h, linux/if_packet.h, linux/if_ether.h
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_VNET_HDR = 263, 1, 15
_PACKET_MR_PROMISC, _PACKET_OUTGOING, _ETH_P_ALL = 1, 4, 3
_MOST_BYTES = 1 << 17


def main(device: str, ms: str) -> None:
    """Copy until it is killed."""
    tap = _tap()
    wire = _wire(device)
    _move_addresses(device)
    print("ready", flush=True)
    _copy(tap, wire, float(ms) / 1000)


def _tap() -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", _TAP.encode(), flags))
    return tap


def _wire(device: str) -> socket.socket:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    wire.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    member = struct.pack("iHH8x", socket.if_nametoindex(device), _PACKET_MR_PROMISC, 0)
    wire.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, member)
    wire.bind((device, _ETH_P_ALL))
    return wire


def _move_addresses(device: str) -> None:
    (link,) = _ip("addr", "show", "dev", device)
    routes = {version: _ip(f"-{version}", "route", "show", "dev", device) for version in (4, 6)}
    subprocess.run(["ip", "addr", "flush", "dev", device], check=True)
    subprocess.run(["ip", "link", "set", device, "address", _OTHER_MAC], check=True)
    own = ["address", link["address"], "mtu", str(link["mtu"])]
    subprocess.run(["ip", "link", "set", _TAP, *own, "up"], check=True)
    for each in link["addr_info"]:
        if each["scope"] == "global":
            place = f"{each['local']}/{each['prefixlen']}"
            nodad = ["nodad"] * (each["family"] == "inet6")
            subprocess.run(["ip", "addr", "add", place, "dev", _TAP, *nodad], check=True)
    for version, found in routes.items():
        for each in sorted(found, key=lambda route: "gateway" in route):
            if each.get("protocol") == "kernel":
                continue
            via = ["via", each["gateway"]] if "gateway" in each else []
            way = ["ip", f"-{version}", "route", "replace", each["dst"], *via, "dev", _TAP]
            subprocess.run(way, check=True)


def _ip(*arguments: str) -> Sequence[dict[str, Any]]:
    shown = subprocess.run(["ip", "-j", *arguments], check=True, stdout=subprocess.PIPE)
    return list(json.loads(shown.stdout))


def _copy(tap: int, wire: socket.socket, seconds: float) -> None:
    late: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        readable, _, _ = select.select([tap, wire.fileno()], [], [], wait)
        if tap in readable:
            wire.send(os.read(tap, _MOST_BYTES))
        if wire.fileno() in readable:
            frame, sender = wire.recvfrom(_MOST_BYTES)
            if sender[2] != _PACKET_OUTGOING:
                number += 1
                heapq.heappush(late, (time.monotonic() + seconds, number, frame))
        while late and late[0][0] <= time.monotonic():
            os.write(tap, heapq.heappop(late)[2])


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""A node's network namespace with an uplink, an overlay, a tunnel, and the devices of two pods:
`pod` and `bare`, which has none of ebpflb's programs.

The devices are taps: a frame written to one arrives at its tc ingress as if from the wire, and what
the kernel sends out can be read. The namespace has no name: the kernel removes it with the last
descriptor, however the tests end.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scapy.layers.inet import ICMP, TCP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded
from scapy.layers.l2 import ARP, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet

from ebpflb.dataplane.kernel.libc import enter_network_namespace
from tests.bpf.harness.packets import NODE_MAC, SENDER_MAC
from tests.skips import kernel_lacks

ROUTER_MAC = "02:00:00:00:01:01"
OVERLAY_MAC = "02:00:00:00:01:02"
POD_MAC = "02:00:00:00:01:03"
PEER_MAC = "02:00:00:00:01:04"
OVERLAY_MTU = 1400
ROUTE_MTU = 1300
# Seconds for which packets may follow a route that is gone: see bpf/next_hop.h.
ROUTE_REMEMBERED = 0.02
TUNNEL_CLIENT = {"198.51.100.9": "198.18.0.9", "2001:db8:100::9": "2001:db8:18::9"}
NO_NEIGHBOUR = {"10.2.0.7": "10.4.0.7", "fd00:2::7": "fd00:4::7"}
NARROW_ROUTE = {"10.2.0.7": "10.3.0.7", "fd00:2::7": "fd00:3::7"}
BEHIND_TUNNEL = {"10.2.0.7": "10.5.0.7", "fd00:2::7": "fd00:5::7"}
NO_ROUTE = {"10.2.0.7": "10.6.0.7", "fd00:2::7": "fd00:6::7"}

_ADDRESSES = """
link set lo up address {node_mac}
link set uplink up address {node_mac} addrgenmode none
link set overlay up address {node_mac} addrgenmode none mtu {overlay_mtu}
link set pod up address {node_mac} addrgenmode none
link set bare up address {node_mac} addrgenmode none
link set tunnel up addrgenmode none
addr add 192.0.2.1/24 dev uplink
addr add 2001:db8:2::1/64 dev uplink nodad
addr add 172.16.0.1/24 dev overlay
addr add fd00:16::1/64 dev overlay nodad
neigh add 192.0.2.254 lladdr {router_mac} nud permanent dev uplink
neigh add 2001:db8:2::fe lladdr {router_mac} nud permanent dev uplink
neigh add 192.0.2.2 lladdr {peer_mac} nud permanent dev uplink
neigh add 2001:db8:2::2 lladdr {peer_mac} nud permanent dev uplink
neigh add 172.16.0.2 lladdr {overlay_mac} nud permanent dev overlay
neigh add fd00:16::2 lladdr {overlay_mac} nud permanent dev overlay
neigh add 10.1.0.5 lladdr {pod_mac} nud permanent dev pod
neigh add fd00:1::5 lladdr {pod_mac} nud permanent dev pod
route add 10.1.0.0/24 dev pod
route add fd00:1::/64 dev pod
route add 198.51.100.0/24 via 192.0.2.254
route add 2001:db8:100::/48 via 2001:db8:2::fe
route add 10.96.0.0/16 via 192.0.2.254
route add fd00:96::/32 via 2001:db8:2::fe
route add 10.2.0.0/16 via 172.16.0.2
route add fd00:2::/32 via fd00:16::2
route add 10.3.0.0/16 via 172.16.0.2 mtu lock {route_mtu}
route add fd00:3::/32 via fd00:16::2 mtu lock {route_mtu}
route add 10.4.0.0/16 via 172.16.0.3
route add fd00:4::/32 via fd00:16::3
route add 10.5.0.0/16 dev tunnel
route add fd00:5::/32 dev tunnel
route add 198.18.0.0/16 dev tunnel
route add 2001:db8:18::/48 dev tunnel
"""
# Packets from the overlay's address to a client leave by the overlay; those from the uplink's
# address to the clients behind the tunnel leave by the uplink.
_POLICY = {
    "-4": """
rule add from 172.16.0.1 lookup 100
route add 198.51.100.0/24 via 172.16.0.2 table 100
rule add from 192.0.2.1 lookup 101
route add 198.18.0.0/16 via 192.0.2.254 table 101
""",
    "-6": """
rule add from fd00:16::1 lookup 100
route add 2001:db8:100::/48 via fd00:16::2 table 100
rule add from 2001:db8:2::1 lookup 101
route add 2001:db8:18::/48 via 2001:db8:2::fe table 101
""",
}
_FORWARDING = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_TAP, _IFF_NAPI, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x2, 0x10, 0x1000, 0x4000
_VNET = struct.Struct("=BBHHHH")
_LINK_HEADER = 14
_SECONDS = 60.0


class Offload(NamedTuple):
    """struct virtio_net_hdr: the work left to the device that sends the frame."""

    flags: int = 0
    gso_type: int = 0
    header_length: int = 0
    gso_size: int = 0
    checksum_start: int = 0
    checksum_offset: int = 0


class Tap:
    """One device: `send()` makes a frame arrive on it, `receive()` reads what the node sends out.

    On devices without Ethernet headers, the one of `Kind.frame()` is removed or added.
    """

    def __init__(self, name: str, *, has_ethernet: bool = True, has_gro: bool = False) -> None:
        """Make it in the current network namespace. `has_gro`: its frames pass through GRO."""
        self.name = name
        self.has_ethernet = has_ethernet
        self.fd = _open_tun()
        kind = (_IFF_TAP if has_ethernet else _IFF_TUN) | (_IFF_NAPI if has_gro else 0)
        request = struct.pack("16sH22x", name.encode(), kind | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(self.fd, _TUNSETIFF, request)
        self.ifindex = socket.if_nametoindex(name)

    def send(self, packet: Packet | bytes, offload: Offload | None = None) -> None:
        """Let a frame arrive."""
        frame = bytes(packet)[0 if self.has_ethernet else _LINK_HEADER :]
        os.write(self.fd, _VNET.pack(*(offload or Offload())) + frame)

    def receive(self) -> Packet:
        """The next frame, except address resolution. AssertionError if there is none."""
        return self.await_frame(_is_traffic)

    def await_frame(self, is_wanted: Callable[[Packet], bool]) -> Packet:
        """The next frame of a kind; others are discarded. AssertionError if there is none."""
        deadline = time.monotonic() + _SECONDS
        while select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            packet = self._read()
            if is_wanted(packet):
                return packet
        raise AssertionError(f"nothing left by {self.name}")

    def is_silent(self) -> bool:
        """Whether nothing has left, except address resolution."""
        return not any(map(_is_traffic, self.drain()))

    def drain(self) -> list[Packet]:
        """Read everything that has left."""
        packets = []
        while select.select([self.fd], [], [], 0)[0]:
            packets.append(self._read())
        return packets

    def _read(self) -> Packet:
        frame = os.read(self.fd, 1 << 17)[_VNET.size :]
        if not self.has_ethernet:
            kind = "IPv4" if frame[0] >> 4 == 4 else "IPv6"
            frame = bytes(Ether(src=SENDER_MAC, dst=NODE_MAC, type=kind)) + frame
        return Ether(frame)


class Node:
    """The namespace and its devices. Addresses and routes are those of `packets.Net`."""

    def __init__(self) -> None:
        self._netns = _new_namespace()
        with self.entered():
            self.uplink = Tap("uplink")
            self.overlay = Tap("overlay")
            self.pod = Tap("pod")
            self.bare = Tap("bare")
            self.tunnel = Tap("tunnel", has_ethernet=False)
            _configure()

    @property
    def taps(self) -> tuple[Tap, ...]:
        """All devices."""
        return self.uplink, self.overlay, self.pod, self.bare, self.tunnel

    def close(self) -> None:
        """Close all descriptors, which removes the namespace."""
        for tap in self.taps:
            os.close(tap.fd)
        os.close(self._netns)

    def forget_neighbours(self) -> None:
        """Drop what was learned about neighbours; the namespace must be entered."""
        subprocess.run(["ip", "neigh", "flush", "dev", self.overlay.name], check=True)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread into the namespace inside the block."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter_network_namespace(self._netns)
            yield
        finally:
            enter_network_namespace(before)
            os.close(before)


def _is_traffic(packet: Packet) -> bool:
    if ARP in packet:
        return False
    errors = (ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded)
    return any(layer in packet for layer in (TCP, UDP, SCTP, ICMP, *errors))


def _open_tun() -> int:
    try:
        return os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        kernel_lacks("tun devices", str(error))


def _configure() -> None:
    script = _ADDRESSES.format(
        node_mac=NODE_MAC,
        router_mac=ROUTER_MAC,
        overlay_mac=OVERLAY_MAC,
        pod_mac=POD_MAC,
        peer_mac=PEER_MAC,
        overlay_mtu=OVERLAY_MTU,
        route_mtu=ROUTE_MTU,
    )
    for name in _FORWARDING:
        Path("/proc/sys/net", name).write_text("1")
    for path in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter"):
        path.write_text("0")
    subprocess.run(["ip", "-batch", "-"], input=script, text=True, check=True)
    for family, rules in _POLICY.items():
        subprocess.run(["ip", family, "-batch", "-"], input=rules, text=True, check=True)


def _new_namespace() -> int:
    descriptors: list[int] = []
    thread = threading.Thread(target=_unshare, args=(descriptors,))
    thread.start()
    thread.join()
    return descriptors[0]


def _unshare(descriptors: list[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    descriptors.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

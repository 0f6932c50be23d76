# SPDX-License-Identifier: Apache-2.0
"""Veths that behave like wires, as XDP at the other end requires, or as with BIG TCP.

With the ioctls of ethtool(8), one for each switch (linux/ethtool.h).
"""

import array
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.dataplane.kernel.netlink import Netlink
from ebpflb.lab.cluster import Lab
from ebpflb.lab.member import Member
from ebpflb.lab.network import UPLINK

_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM, _ETHTOOL_SGRO = 0x17, 0x2C
_BIG_TCP_BYTES, _USUAL_BYTES = 180_000, 65_536
_RTM_SETLINK = 19
# linux/if_link.h: IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE, and both of IPv4.
_SIZES = (41, 58, 63, 64)
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HHI")


def wire(lab: Lab) -> None:
    """Make the nodes' uplinks, and whoever sends to them, behave like wires."""
    for node in lab.nodes:
        take_xdp_frames(lab.underlay, node.name)
    for member in (*lab.nodes, lab.client, *lab.pods):
        fill_checksums(member, UPLINK)


def fill_checksums(member: Member, device: str) -> None:
    """Packets leave with complete checksums, which no device has to fill in."""
    _switch(member, device, _ETHTOOL_STXCSUM, is_on=False)


def take_xdp_frames(member: Member, device: str) -> None:
    """The other end of this veth may send by XDP: its frames are received by NAPI."""
    _switch(member, device, _ETHTOOL_SGRO, is_on=True)


def receive_by_napi(device: str) -> None:
    """`take_xdp_frames()` in the present namespace."""
    _switch_here(device, _ETHTOOL_SGRO, is_on=True)


@contextmanager
def big_tcp(lab: Lab) -> Iterator[None]:
    """Segments longer than 64 KiB between all devices of nodes, pods, client and underlay."""
    _set_sizes(lab, _BIG_TCP_BYTES)
    try:
        yield
    finally:
        _set_sizes(lab, _USUAL_BYTES)


def _set_sizes(lab: Lab, size: int) -> None:
    attributes = b"".join(_ATTRIBUTE.pack(_ATTRIBUTE.size, kind, size) for kind in _SIZES)
    for member in (*lab.nodes, *lab.pods, lab.client, lab.underlay):
        with member.entered(), Netlink(socket.NETLINK_ROUTE) as netlink:
            for index, name in socket.if_nameindex():
                if name != "lo":
                    link = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0)
                    netlink.request(_RTM_SETLINK, link + attributes)


def _switch(member: Member, device: str, command: int, *, is_on: bool) -> None:
    with member.entered():
        _switch_here(device, command, is_on=is_on)


def _switch_here(device: str, command: int, *, is_on: bool) -> None:
    value = array.array("I", (command, is_on))
    place, _ = value.buffer_info()
    request = struct.pack("=16sQ16x", device.encode(), place)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)

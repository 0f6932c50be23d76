# SPDX-License-Identifier: Apache-2.0
"""Veths that behave like wires, and as XDP at the other end requires.

With the ioctls of ethtool(8), one for each switch (linux/ethtool.h).
"""

import array
import fcntl
import socket
import struct

from ebpflb.lab.cluster import Lab
from ebpflb.lab.member import Member
from ebpflb.lab.network import UPLINK

_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM, _ETHTOOL_SGRO = 0x17, 0x2C


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


def _switch(member: Member, device: str, command: int, *, is_on: bool) -> None:
    with member.entered():
        _switch_here(device, command, is_on=is_on)


def _switch_here(device: str, command: int, *, is_on: bool) -> None:
    value = array.array("I", (command, is_on))
    place, _ = value.buffer_info()
    request = struct.pack("=16sQ16x", device.encode(), place)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)

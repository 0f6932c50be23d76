# SPDX-License-Identifier: Apache-2.0
"""Where the current network namespace would send a packet, asked of the kernel one by one."""

import socket
import struct
from typing import NamedTuple

from ebpflb.dataplane.kernel.netlink import Rtm, Rtnetlink, attribute, attributes, number
from ebpflb.model.address import Address, Family, family_of

_RTMSG = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_OIF = 1, 4
_RTN_UNICAST, _RTN_LOCAL = 1, 2


class Route(NamedTuple):
    """`ifindex`: the device that packets leave by. is_local: they do not leave."""

    ifindex: int
    is_local: bool


def route_to(address: Address) -> Route | None:
    """None where packets to the address go nowhere. OSError when netlink is not there."""
    is_ipv4 = family_of(address) is Family.IPV4
    target = address[12:] if is_ipv4 else bytes(address)
    family = socket.AF_INET if is_ipv4 else socket.AF_INET6
    request = _RTMSG.pack(family, 8 * len(target), 0, 0, 0, 0, 0, 0, 0)
    with Rtnetlink() as netlink:
        try:
            answers = netlink.request(Rtm.GETROUTE, request + attribute(_RTA_DST, target))
        except OSError:
            return None
    for answer in answers:
        kind = _RTMSG.unpack_from(answer)[7]
        if kind in (_RTN_UNICAST, _RTN_LOCAL):
            ifindex = number(attributes(answer, _RTMSG.size).get(_RTA_OIF, b""))
            return Route(ifindex, kind == _RTN_LOCAL)
    return None


def device_name(ifindex: int) -> str:
    """The name of a device, or its number where it is gone."""
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return f"device {ifindex}"

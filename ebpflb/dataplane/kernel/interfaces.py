# SPDX-License-Identifier: Apache-2.0
"""What rtnetlink says about interfaces, their addresses and the default route, as plain values."""

import os
import socket
import struct
from enum import IntFlag
from typing import NamedTuple

from ebpflb.dataplane.kernel.netlink import Rtm, Rtnetlink, attribute, attributes, number, text
from ebpflb.model.address import Address, Family, parse_address

_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_U32 = struct.Struct("=I")
_S32 = struct.Struct("=i")

_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_IFLA_IFNAME, _IFLA_EXT_MASK, _IFLA_LINK_NETNSID = 3, 29, 37
# IFLA_MASTER; IFLA_LINKINFO and in it IFLA_INFO_KIND and IFLA_INFO_SLAVE_KIND.
_IFLA_UPPER = 10
_IFLA_DETAILS, _DETAIL_KIND, _DETAIL_UPPER_KIND = 18, 1, 4
_SKIP_STATISTICS = 1 << 3
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_PREFSRC = 1, 7
_MAPPED = bytes(10) + b"\xff\xff"
_FAMILY = {int(socket.AF_INET): Family.IPV4, int(socket.AF_INET6): Family.IPV6}

# A reserved and a discarded address: no network has them, so only a default route leads there.
_ANYWHERE = {
    Family.IPV4: (socket.AF_INET, 32, parse_address("240.0.0.1")[12:]),
    Family.IPV6: (socket.AF_INET6, 128, parse_address("100::1")),
}


class Interface(NamedTuple):
    """A network device. `upper`: the device it is a port of, 0 = none, and that one's kind.

    `netnsid`: our number for the namespace of a veth's peer, None when the peer is in our own.
    """

    ifindex: int
    name: str
    header: int = 1
    up: bool = True
    loopback: bool = False
    kind: str = ""
    upper: int = 0
    upper_kind: str = ""
    netnsid: int | None = None


class AddressFlag(IntFlag):
    """IFA_F_* of linux/if_addr.h. SECONDARY means temporary for IPv6."""

    SECONDARY = 0x01
    OPTIMISTIC = 0x04
    DADFAILED = 0x08
    DEPRECATED = 0x20
    TENTATIVE = 0x40


class InterfaceAddress(NamedTuple):
    """An address of a device. `scope` 0 is global."""

    ifindex: int
    family: Family
    address: Address
    prefix_length: int
    scope: int = 0
    flags: AddressFlag = AddressFlag(0)


def read_interfaces(netlink: Rtnetlink) -> list[Interface]:
    """All devices of the namespace, by ifindex."""
    request = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    request += attribute(_IFLA_EXT_MASK, _U32.pack(_SKIP_STATISTICS))
    return sorted(_interface(body) for body in netlink.dump(Rtm.GETLINK, request))


def read_addresses(netlink: Rtnetlink) -> list[InterfaceAddress]:
    """All addresses of the namespace; those of one device and family as the kernel ranks them."""
    request = _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    bodies = netlink.dump(Rtm.GETADDR, request)
    return [_address(body, _FAMILY[body[0]]) for body in bodies if body[0] in _FAMILY]


def default_source(netlink: Rtnetlink, family: Family) -> Address | None:
    """The source address that the kernel chooses for the default route; None without one."""
    number_of, length, destination = _ANYWHERE[family]
    request = _RTMSG.pack(number_of, length, 0, 0, 0, 0, 0, 0, 0)
    try:
        routes = netlink.request(Rtm.GETROUTE, request + attribute(_RTA_DST, destination))
    except OSError:
        return None
    sources = [attributes(route, _RTMSG.size).get(_RTA_PREFSRC) for route in routes]
    return next((_mapped(source) for source in sources if source), None)


def _interface(body: bytes) -> Interface:
    _, header, ifindex, flags, _ = _IFINFOMSG.unpack_from(body)
    found = attributes(body, _IFINFOMSG.size)
    details = attributes(found.get(_IFLA_DETAILS, b""))
    netnsid = found.get(_IFLA_LINK_NETNSID)
    return Interface(
        ifindex=ifindex,
        name=os.fsdecode(found[_IFLA_IFNAME].rstrip(b"\0")),
        header=header,
        up=bool(flags & _IFF_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        kind=text(details.get(_DETAIL_KIND, b"")),
        upper=number(found.get(_IFLA_UPPER, b"")),
        upper_kind=text(details.get(_DETAIL_UPPER_KIND, b"")),
        netnsid=_S32.unpack(netnsid)[0] if netnsid else None,
    )


def _address(body: bytes, family: Family) -> InterfaceAddress:
    _, length, flags, scope, ifindex = _IFADDRMSG.unpack_from(body)
    found = attributes(body, _IFADDRMSG.size)
    flags = number(found[_IFA_FLAGS]) if _IFA_FLAGS in found else flags
    # IFA_ADDRESS is the other end where there are two.
    address = found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]
    return InterfaceAddress(ifindex, family, _mapped(address), length, scope, AddressFlag(flags))


def _mapped(address: bytes) -> Address:
    return Address(_MAPPED + address if len(address) == 4 else address)  # noqa: PLR2004

# SPDX-License-Identifier: Apache-2.0
"""What rtnetlink reports about devices, addresses, routes, qdiscs and filters, as plain values.

Data read after each network event is decoded here, the rest by pyroute2 (netlink.py).
"""

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel.netlink import Netlink, attributes, number, text
from ebpflb.model.address import Address, Family, address_of, format_address, parse_address

_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
_TCMSG = struct.Struct("=BxxxiIII")
_NDMSG = struct.Struct("=BxxxiHBB")
_S32 = struct.Struct("=i")

_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_LINK_NETNSID = 1, 3, 4, 5, 37
# IFLA_MASTER; IFLA_LINKINFO and in it IFLA_INFO_KIND and IFLA_INFO_SLAVE_KIND.
_IFLA_UPPER = 10
_IFLA_DETAILS, _DETAIL_KIND, _DETAIL_UPPER_KIND = 18, 1, 4
_IFLA_XDP, _XDP_PROG_ID = 43, 4
# IFLA_EXT_MASK with RTEXT_FILTER_SKIP_STATS.
_SKIP_STATISTICS = struct.pack("=HHI", 8, 29, 1 << 3)
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_NDA_DST = 1
_NUD_INCOMPLETE, _NUD_FAILED = 0x01, 0x20
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_NAME, _TCA_BPF_ID = 7, 11
_RTN_UNICAST, _RTN_LOCAL = 1, 2
_RTM_NEWROUTE, _RTM_DELROUTE = 24, 25
_SO_ATTACH_FILTER = 26
# struct sock_filter.
_INSTRUCTION = struct.Struct("=HBBI")
_FAMILY = {int(socket.AF_INET): Family.IPV4, int(socket.AF_INET6): Family.IPV6}

# A reserved and a discard-only address: no network has them, so only a default route matches.
_ANYWHERE = {Family.IPV4: "240.0.0.1", Family.IPV6: "100::1"}


class _Get(IntEnum):
    """Message types of linux/rtnetlink.h."""

    LINK = 18
    ADDR = 22
    NEIGHBOUR = 30
    QDISC = 38
    FILTER = 46


class Interface(NamedTuple):
    """A network device. `upper`: the device it is a port of, 0 = none, and that one's kind.

    `netnsid`: our number for the namespace of a veth's peer, None if the peer is in our own.
    `running`: it is up and has a carrier, or cannot tell. `lower`: the device below a VLAN or
    tunnel, 0 = none. `xdp`: the id of its XDP program. `mac`: its own address on the link, if it
    has one.
    """

    ifindex: int
    name: str
    header: int = 1
    up: bool = True
    running: bool = True
    loopback: bool = False
    kind: str = ""
    upper: int = 0
    upper_kind: str = ""
    netnsid: int | None = None
    mtu: int = 0
    lower: int = 0
    xdp: int = 0
    mac: bytes = b""


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


class Qdisc(NamedTuple):
    """A queueing discipline of a device."""

    ifindex: int
    kind: str


class Filter(NamedTuple):
    """A tc filter; `program` is the kernel's id, 0 unless it is a BPF program."""

    kind: str
    name: str
    priority: int
    handle: int
    program: int


class DefaultRoute(NamedTuple):
    """Its device, and the source address that the kernel chooses, None if there is none."""

    ifindex: int
    source: Address | None


class Route(NamedTuple):
    """`ifindex`: the outgoing device. is_local: packets do not leave the node.

    gateway: the next hop; None if that is the destination itself, or is of the other family.
    """

    ifindex: int
    is_local: bool
    gateway: Address | None = None


class Neighbour(NamedTuple):
    """A neighbour on a device. is_answering: False while resolution fails."""

    ifindex: int
    address: Address
    is_answering: bool


class Rtnetlink(Netlink):
    """Devices, addresses, routes and tc in the network namespace of the thread that opens it."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE)
        self._iproute: Any = None

    def close(self) -> None:
        """Close the sockets; further calls do nothing."""
        super().close()
        if self._iproute:
            self._iproute.close()
            self._iproute = None

    @contextmanager
    def iproute(self) -> Iterator[Any]:
        """pyroute2's IPRoute. Its errors become OSError, with the kernel's text if there is one.

        It is imported and opened on first use, in the thread's network namespace at that time:
        the import takes 19 MB and 80 ms, and most commands do not need it.
        """
        from pyroute2.iproute.linux import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        self._iproute = self._iproute or IPRoute(ext_ack=True)
        try:
            yield self._iproute
        except NetlinkError as error:
            reason, detail = os.strerror(error.code), error.args[1]
            message = reason if detail == reason else f"{reason} ({detail})"
            raise OSError(error.code, message) from error


def read_interfaces(netlink: Netlink) -> list[Interface]:
    """All devices of the namespace, by ifindex."""
    request = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + _SKIP_STATISTICS
    return sorted(_interface(body) for body in netlink.dump(_Get.LINK, request))


def read_addresses(netlink: Netlink) -> list[InterfaceAddress]:
    """All addresses of the namespace; per device and family in the kernel's order of preference."""
    bodies = netlink.dump(_Get.ADDR, _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
    return [_address(body, _FAMILY[body[0]]) for body in bodies if body[0] in _FAMILY]


def read_neighbours(netlink: Netlink) -> list[Neighbour]:
    """All neighbours of the namespace, ARP and IPv6."""
    bodies = netlink.dump(_Get.NEIGHBOUR, _NDMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
    return [found for found in map(_neighbour, bodies) if found]


def read_qdiscs(netlink: Netlink) -> list[Qdisc]:
    """All qdiscs of the namespace. EOPNOTSUPP on a kernel without tc."""
    bodies = netlink.dump(_Get.QDISC, _TCMSG.pack(0, 0, 0, 0, 0))
    return [
        Qdisc(_TCMSG.unpack_from(body)[1], text(attributes(body, _TCMSG.size)[_TCA_KIND]))
        for body in bodies
    ]


def read_filters(netlink: Netlink, ifindex: int, parent: int) -> list[Filter]:
    """The filters of a device, in the kernel's order."""
    bodies = netlink.dump(_Get.FILTER, _TCMSG.pack(0, ifindex, 0, parent, 0))
    return [found for found in map(_filter, bodies) if found.handle]


def default_routes(netlink: Rtnetlink) -> dict[Family, DefaultRoute]:
    """By family, the device and source address for a packet to the internet."""
    found = {}
    for family, anywhere in _ANYWHERE.items():
        with contextlib.suppress(OSError), netlink.iproute() as iproute:
            (route,) = iproute.route("get", dst=anywhere)
            source = route.get("prefsrc")
            found[family] = DefaultRoute(
                route.get("oif") or 0, parse_address(source) if source else None
            )
    return found


def drop_other_routes(events: socket.socket) -> None:
    """Make the kernel drop messages about routes with a prefix before they are queued.

    A classic BPF program: it reads the message's type, then the prefix length in struct rtmsg.
    """
    load_half, load_byte, if_equal, done = 0x28, 0x30, 0x15, 0x06
    swap = (lambda kind: kind << 8) if sys.byteorder == "little" else int
    program = (
        (load_half, 0, 0, 4),
        (if_equal, 1, 0, swap(_RTM_NEWROUTE)),
        (if_equal, 0, 2, swap(_RTM_DELROUTE)),
        (load_byte, 0, 0, 17),
        (if_equal, 0, 1, 0),
        (done, 0, 0, 0xFFFFFFFF),
        (done, 0, 0, 0),
    )
    packed = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*each) for each in program))
    pointer = struct.pack("HL", len(program), ctypes.addressof(packed))
    events.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def route_to(address: Address) -> Route | None:
    """Where the current namespace would send a packet; None: no route. OSError without netlink."""
    with Rtnetlink() as netlink:
        try:
            with netlink.iproute() as iproute:
                (route,) = iproute.route("get", dst=format_address(address))
        except OSError:
            return None
    if route["type"] not in (_RTN_UNICAST, _RTN_LOCAL):
        return None
    gateway = route.get("gateway")
    return Route(
        route.get("oif") or 0,
        route["type"] == _RTN_LOCAL,
        parse_address(gateway) if gateway else None,
    )


def device_name(ifindex: int) -> str:
    """The name of a device, or its number if it is gone."""
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return f"device {ifindex}"


def _filter(body: bytes) -> Filter:
    _, _, handle, _, priority_and_protocol = _TCMSG.unpack_from(body)
    found = attributes(body, _TCMSG.size)
    options = attributes(found.get(_TCA_OPTIONS, b""))
    return Filter(
        kind=text(found[_TCA_KIND]),
        name=text(options.get(_TCA_BPF_NAME, b"")),
        priority=priority_and_protocol >> 16,
        handle=handle,
        program=number(options.get(_TCA_BPF_ID, b"")),
    )


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
        running=bool(flags & _IFF_RUNNING),
        loopback=bool(flags & _IFF_LOOPBACK),
        kind=text(details.get(_DETAIL_KIND, b"")),
        upper=number(found.get(_IFLA_UPPER, b"")),
        upper_kind=text(details.get(_DETAIL_UPPER_KIND, b"")),
        netnsid=_S32.unpack(netnsid)[0] if netnsid else None,
        mtu=number(found.get(_IFLA_MTU, b"")),
        lower=number(found.get(_IFLA_LINK, b"")),
        xdp=number(attributes(found.get(_IFLA_XDP, b"")).get(_XDP_PROG_ID, b"")),
        mac=found.get(_IFLA_ADDRESS, b""),
    )


def _address(body: bytes, family: Family) -> InterfaceAddress:
    _, length, flags, scope, ifindex = _IFADDRMSG.unpack_from(body)
    found = attributes(body, _IFADDRMSG.size)
    flags = number(found[_IFA_FLAGS]) if _IFA_FLAGS in found else flags
    # On point-to-point devices IFA_ADDRESS is the peer.
    address = found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]
    return InterfaceAddress(ifindex, family, address_of(address), length, scope, AddressFlag(flags))


def _neighbour(body: bytes) -> Neighbour | None:
    family, ifindex, state, _, _ = _NDMSG.unpack_from(body)
    address = attributes(body, _NDMSG.size).get(_NDA_DST)
    if family not in _FAMILY or not address:
        return None
    return Neighbour(ifindex, address_of(address), not state & (_NUD_INCOMPLETE | _NUD_FAILED))

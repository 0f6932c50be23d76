# SPDX-License-Identifier: Apache-2.0
"""BIG TCP: segments longer than 64 KiB between the devices of a lab."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.dataplane.kernel.netlink import Netlink
from ebpflb.lab import Lab

LONGEST = 180_000
_USUAL = 65_536
_RTM_SETLINK = 19
# linux/if_link.h: IFLA_GSO_MAX_SIZE, GRO_MAX_SIZE, and both of IPv4.
_SIZES = (41, 58, 63, 64)
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HHI")


@contextmanager
def big_tcp(lab: Lab) -> Iterator[None]:
    """On every device of nodes, pods, client and the network between them."""
    _set_sizes(lab, LONGEST)
    try:
        yield
    finally:
        _set_sizes(lab, _USUAL)


def _set_sizes(lab: Lab, size: int) -> None:
    attributes = b"".join(_ATTRIBUTE.pack(_ATTRIBUTE.size, kind, size) for kind in _SIZES)
    for member in (*lab.nodes, *lab.pods, lab.client, lab.underlay):
        with member.entered(), Netlink(socket.NETLINK_ROUTE) as netlink:
            for index, name in socket.if_nameindex():
                if name != "lo":
                    link = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0)
                    netlink.request(_RTM_SETLINK, link + attributes)

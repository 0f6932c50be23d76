# SPDX-License-Identifier: Apache-2.0
"""Listing and destroying connected UDP sockets of the calling thread's network namespace.

The process of a destroyed socket gets ECONNABORTED, and the socket is no longer connected.
"""

import errno
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from ebpflb.dataplane.kernel.netlink import Netlink
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Protocol

_NETLINK_SOCK_DIAG = 4
# inet_diag_req_v2: family, protocol, extensions, states, and then inet_diag_sockid.
_REQUEST = struct.Struct("=BBBxI")
# inet_diag_sockid: ports and addresses of both ends, interface, halves of the cookie.
_IDENTITY = struct.Struct("!2s2s16s16s")
_IDENTITY_SIZE = 48
_COOKIE = struct.Struct("=II")
_COOKIE_AT = 40
# inet_diag_msg: family, state, timer and retransmissions come before the same.
_IDENTITY_AT = 4
# Of UDP, CONNECTED: what TCP calls ESTABLISHED.
_CONNECTED = 1 << 1
_MAPPED = bytes(10) + b"\xff\xff"
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Sock(IntEnum):
    """Message types of linux/sock_diag.h."""

    DIAG_BY_FAMILY = 20
    DESTROY = 21


class UdpSocket(NamedTuple):
    """A connected socket: its cookie, its peer, and its inet_diag_sockid."""

    cookie: int
    peer: Address
    port: int
    family: int
    identity: bytes


class SockDiag(Netlink):
    """A netlink socket of one thread and one namespace. Errors are OSError."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_SOCK_DIAG)

    def connected(self) -> list[UdpSocket]:
        """The connected UDP sockets of both families."""
        found = []
        for family in _FAMILIES:
            request = _REQUEST.pack(family, Protocol.UDP, 0, _CONNECTED) + bytes(_IDENTITY_SIZE)
            for bodies in self.stream(Sock.DIAG_BY_FAMILY, request):
                found += [_socket(family, body) for body in bodies]
        return found

    def destroy(self, one: UdpSocket) -> bool:
        """Destroy a socket; False when it is gone."""
        request = _REQUEST.pack(one.family, Protocol.UDP, 0, _CONNECTED) + one.identity
        try:
            self.request(Sock.DESTROY, request)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True


def try_to_destroy() -> None:
    """Try listing and destroying. ProbeError or OSError where the kernel cannot do both."""
    with SockDiag() as diag:
        try:
            diag.connected()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            raise ProbeError("the kernel lists no UDP sockets (CONFIG_INET_UDP_DIAG)") from error
        diag.destroy(UdpSocket(0, Address(bytes(16)), 0, socket.AF_INET, bytes(_IDENTITY_SIZE)))


def _socket(family: int, body: bytes) -> UdpSocket:
    identity = body[_IDENTITY_AT : _IDENTITY_AT + _IDENTITY_SIZE]
    _, port, _, peer = _IDENTITY.unpack_from(identity)
    low, high = _COOKIE.unpack_from(identity, _COOKIE_AT)
    address = _MAPPED + peer[:4] if family == socket.AF_INET else peer
    return UdpSocket(
        low | high << 32, Address(address), int.from_bytes(port, "big"), family, identity
    )

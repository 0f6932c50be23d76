# SPDX-License-Identifier: Apache-2.0
"""Connected UDP sockets of the calling thread's network namespace: found and ended by sock_diag.

A socket that is ended tells its process ECONNABORTED and is connected to nothing any more.
"""

import errno
import socket
import struct
from collections.abc import Iterator
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
    """A connected socket: its cookie, the other end, and its name in the kernel's own words."""

    cookie: int
    peer: Address
    port: int
    family: int
    identity: bytes


class SockDiag(Netlink):
    """A netlink socket of one thread and one namespace. Errors are OSError."""

    def __init__(self) -> None:
        """Open."""
        super().__init__(_NETLINK_SOCK_DIAG)

    def connected(self) -> list[UdpSocket]:
        """The connected UDP sockets of both families."""
        return [_socket(family, body) for family in _FAMILIES for body in self._dump(family)]

    def _dump(self, family: int) -> Iterator[bytes]:
        request = _REQUEST.pack(family, Protocol.UDP, 0, _CONNECTED) + bytes(_IDENTITY_SIZE)
        for bodies in self.stream(Sock.DIAG_BY_FAMILY, request):
            yield from bodies

    def destroy(self, one: UdpSocket) -> bool:
        """End a socket; False when it is not there any more."""
        request = _REQUEST.pack(one.family, Protocol.UDP, 0, _CONNECTED) + one.identity
        try:
            self.request(Sock.DESTROY, request)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True


def try_to_destroy() -> None:
    """Whether sockets can be found and ended. ProbeError or OSError if not."""
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

# SPDX-License-Identifier: Apache-2.0
"""Sockets of the calling thread's network namespace.

The process of a destroyed socket gets ECONNABORTED, and the socket is no longer connected.
"""

import errno
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from ebpflb.dataplane.kernel.netlink import Netlink, attributes
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Protocol, SocketAddress, address_of

_NETLINK_SOCK_DIAG = 4
# inet_diag_req_v2: family, protocol, extensions, states, and then inet_diag_sockid.
_REQUEST = struct.Struct("=BBBxI")
# inet_diag_sockid: ports and addresses of both ends, interface, halves of the cookie.
_IDENTITY = struct.Struct("!2s2s16s16s")
_IDENTITY_SIZE = 48
_COOKIE = struct.Struct("=II")
_COOKIE_AT = 40
# inet_diag_msg: family, state, timer and retransmissions, then the same identity.
_IDENTITY_AT = 4
# The rest of inet_diag_msg: expiry, both queues, user, inode. Attributes follow.
_QUEUES, _QUEUES_AT = struct.Struct("=II"), _IDENTITY_AT + _IDENTITY_SIZE + 4
_MESSAGE_SIZE = _IDENTITY_AT + _IDENTITY_SIZE + 20
# INET_DIAG_INFO as an attribute, and in the request.
_INFO, _WITH_INFO = 2, 1 << 1
# tcp_info: state, last_data_sent and last_data_recv in ms, bytes_acked, bytes_received.
_TCP_INFO = struct.Struct("=B43xI4xI64xQQ")
# TCP_FIN_WAIT2; TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING.
_OWN_FIN_ACKED, _PEER_FIN = (5,), (8, 9, 11)
# For UDP, this state means connected: TCP's ESTABLISHED.
_CONNECTED = 1 << 1
# Waiting for clients: TCP_LISTEN, and TCP_CLOSE, which is UDP without a peer.
_WAITING = {Protocol.TCP: 1 << 10, Protocol.UDP: 1 << 7}
# All but TCP_TIME_WAIT and TCP_NEW_SYN_RECV, which no process has a socket for.
_OPEN = 0xFFF & ~(1 << 6)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Sock(IntEnum):
    """Message types of linux/sock_diag.h."""

    DIAG_BY_FAMILY = 20
    DESTROY = 21


class ConnectedSocket(NamedTuple):
    """Its cookie, its peer, and its inet_diag_sockid."""

    cookie: int
    peer: Address
    port: int
    family: int
    identity: bytes
    protocol: Protocol = Protocol.UDP


class TcpProgress(NamedTuple):
    """enum tcp_state; seconds since the last data in either direction; bytes of payload.

    sent: one too few for the side that accepted the connection.
    """

    state: int
    idle: float
    sent: int
    received: int


class TcpConnection(NamedTuple):
    """An established one. own: this side's address and port. idle: 0 with data under way."""

    socket: ConnectedSocket
    own: SocketAddress
    idle: float


class OpenSocket(NamedTuple):
    """A socket that is bound to a port. progress: of TCP."""

    cookie: int
    address: Address
    port: int
    progress: TcpProgress | None = None


class SockDiag(Netlink):
    """A netlink socket for one thread and one namespace. Errors are OSError."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_SOCK_DIAG)

    def connected(self) -> list[ConnectedSocket]:
        """The connected UDP sockets of both families."""
        return [_socket(*found) for found in self._list(Protocol.UDP, _CONNECTED)]

    def connections(self) -> Iterator[TcpConnection]:
        """The established TCP connections of both families."""
        for family, body in self._list(Protocol.TCP, _CONNECTED, _WITH_INFO):
            socket = _socket(family, body)._replace(protocol=Protocol.TCP)
            own = SocketAddress(*_bound_to(family, body))
            yield TcpConnection(socket, own, _idle(body))

    def cookies(self, protocol: Protocol) -> set[int]:
        """The cookies of all sockets that are bound to a port."""
        return {_cookie(body) for _, body in self._list(protocol, _OPEN)}

    def sockets(self, protocol: Protocol) -> Iterator[OpenSocket]:
        """All sockets that are bound to a port, of TCP or UDP."""
        extensions = _WITH_INFO if protocol is Protocol.TCP else 0
        for family, body in self._list(protocol, _OPEN, extensions):
            yield OpenSocket(_cookie(body), *_bound_to(family, body), _progress(body))

    def waiting(self, protocol: Protocol) -> set[tuple[Address, int]]:
        """Addresses and ports on which sockets wait for clients; empty for SCTP.

        The IPv6 wildcard may stand for both families.
        """
        states = _WAITING.get(protocol, 0)
        return {_bound_to(*found) for found in self._list(protocol, states)} if states else set()

    def _list(
        self, protocol: Protocol, states: int, extensions: int = 0
    ) -> Iterator[tuple[int, bytes]]:
        """Family and inet_diag_msg of each socket in these states, with what follows it."""
        for family in _FAMILIES:
            request = _REQUEST.pack(family, protocol, extensions, states) + bytes(_IDENTITY_SIZE)
            for bodies in self.stream(Sock.DIAG_BY_FAMILY, request):
                for body in bodies:
                    yield family, body

    def destroy(self, one: ConnectedSocket) -> bool:
        """Destroy a socket; False if it is gone."""
        request = _REQUEST.pack(one.family, one.protocol, 0, _CONNECTED) + one.identity
        try:
            self.request(Sock.DESTROY, request)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True


def try_to_destroy() -> None:
    """Try listing and destroying. ProbeError or OSError if the kernel cannot do both."""
    with SockDiag() as diag:
        try:
            diag.connected()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            raise ProbeError("the kernel lists no UDP sockets (CONFIG_INET_UDP_DIAG)") from error
        diag.destroy(
            ConnectedSocket(0, Address(bytes(16)), 0, socket.AF_INET, bytes(_IDENTITY_SIZE))
        )


def _socket(family: int, body: bytes) -> ConnectedSocket:
    identity = body[_IDENTITY_AT : _IDENTITY_AT + _IDENTITY_SIZE]
    _, port, _, peer = _IDENTITY.unpack_from(identity)
    number = int.from_bytes(port, "big")
    return ConnectedSocket(_cookie(body), _address(family, peer), number, family, identity)


def _cookie(body: bytes) -> int:
    low, high = _COOKIE.unpack_from(body, _IDENTITY_AT + _COOKIE_AT)
    return int(low | high << 32)


def _progress(body: bytes) -> TcpProgress | None:
    info = attributes(body, _MESSAGE_SIZE).get(_INFO, b"")
    if len(info) < _TCP_INFO.size:
        return None
    state, sent_ms, received_ms, acked, received = _TCP_INFO.unpack_from(info)
    # The SYN of the side that opened counts as a byte, and each FIN.
    sent = max(acked - 1 - (state in _OWN_FIN_ACKED), 0)
    received -= state in _PEER_FIN
    return TcpProgress(state, min(sent_ms, received_ms) / 1000, sent, received)


def _idle(body: bytes) -> float:
    """Seconds without data, of a TCP connection; 0 with some that is not acknowledged or read."""
    progress = _progress(body)
    return 0.0 if progress is None or any(_QUEUES.unpack_from(body, _QUEUES_AT)) else progress.idle


def _bound_to(family: int, body: bytes) -> tuple[Address, int]:
    port, _, address, _ = _IDENTITY.unpack_from(body, _IDENTITY_AT)
    return _address(family, address), int.from_bytes(port, "big")


def _address(family: int, found: bytes) -> Address:
    return address_of(found[:4] if family == socket.AF_INET else found)

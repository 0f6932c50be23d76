# SPDX-License-Identifier: Apache-2.0
"""TCP sockets that listen."""

import socket

from ebpflb.log import fields
from ebpflb.observe.http.listening import Words

_BACKLOG = 128


class TcpPlace:
    """An address to listen at, as `tcp_socket()` takes it."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.words = Words("cannot listen", "listening", fields(address=str(self)))

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    def listen(self) -> socket.socket:
        """A listening socket. OSError."""
        return tcp_socket(self._host, self._port)

    def leave(self) -> None:
        """There is nothing beside the socket."""


def tcp_socket(host: str, port: int) -> socket.socket:
    """Listens at `host` for its family alone. OSError.

    An empty host means all addresses, of both families where there is IPv6.
    """
    both_families = not host and socket.has_dualstack_ipv6()
    host = "::" if both_families else host
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both_families)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made

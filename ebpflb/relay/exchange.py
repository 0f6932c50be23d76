# SPDX-License-Identifier: Apache-2.0
"""One request to an agent and its response, over mutual TLS, however long that goes on."""

import socket
import ssl
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, Self

import h11

from ebpflb.errors import ClusterError
from ebpflb.words.observe import AGENT

_CONNECT_SECONDS = 5.0
_PIECE_BYTES = 1 << 16
_LONGEST_QUOTE = 60
# How long a silent agent may keep a reader waiting.
_LOOK_SECONDS = 1.0


class Exchange:
    """Open it as a context. Raises OSError, and ClusterError for what is no HTTP."""

    def __init__(self, address: str, port: int, encryption: ssl.SSLContext) -> None:
        self._place = address, port
        self._encryption = encryption
        self._http = h11.Connection(h11.CLIENT)
        self._last = b""

    def __enter__(self) -> Self:
        """The certificate has the name of agents, whatever their address."""
        plain = socket.create_connection(self._place, _CONNECT_SECONDS)
        try:
            self._socket = self._encryption.wrap_socket(plain, server_hostname=AGENT)
        except BaseException:
            plain.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, target: str, deadline: float | None) -> int:
        """Send a GET request; the status of the response. `deadline`: as in pieces()."""
        request = h11.Request(method="GET", target=target, headers=[("Host", AGENT)])
        self._socket.sendall(self._http.send(request) or b"")
        self._socket.sendall(self._http.send(h11.EndOfMessage()) or b"")
        while not isinstance(event := self._next(deadline), h11.Response):
            if event is not None:
                raise ClusterError("what answers is no agent")
        return int(event.status_code)

    def pieces(self, deadline: float | None) -> Iterator[bytes]:
        """The body as it arrives; an empty piece while nothing does.

        TimeoutError at the deadline, of a monotonic clock.
        """
        while not isinstance(event := self._next(deadline), h11.EndOfMessage):
            yield bytes(event.data) if isinstance(event, h11.Data) else b""

    def _break_off(self) -> NoReturn:
        if self._http.their_state is h11.SEND_RESPONSE:
            raise ConnectionResetError
        raise ClusterError("breaks off in the middle of its answer")

    def _next(self, deadline: float | None) -> object:
        """The next event; None if nothing has arrived for a while."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(min(left, _LOOK_SECONDS))
                try:
                    received = self._socket.recv(_PIECE_BYTES)
                except TimeoutError:
                    return None
                if not received:
                    self._break_off()
                self._last = received
                self._http.receive_data(received)
        except h11.RemoteProtocolError as error:
            said = self._last.partition(b"\r\n")[0][:_LONGEST_QUOTE].decode(errors="replace")
            raise ClusterError(f"{said}: no answer of an agent ({error})") from error
        return event

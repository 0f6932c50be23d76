# SPDX-License-Identifier: Apache-2.0
"""Answers root's queries over HTTP on a UNIX socket, one query per connection.

A reply may be an endless stream. A slow client only occupies its own thread.
"""

import json
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.observe.http.server import (
    JSON,
    RETRY_SECONDS,
    Listener,
    ListenerThread,
    RequestHandler,
)

MOST_QUERIES = 16
JSON_LINES = "application/jsonl"
_CONNECT_SECONDS = 10.0


class Query(NamedTuple):
    """The decoded parts of the path after the route's prefix, and the parameters."""

    path: tuple[str, ...]
    parameters: Mapping[str, str]


class StreamedReply(NamedTuple):
    """A body in pieces; an empty piece makes the server check that the client is still there."""

    pieces: Iterable[bytes]
    content_type: str = JSON
    status: HTTPStatus = HTTPStatus.OK


class HttpQueryError(Exception):
    """A query that cannot be answered; the text is one line for the user who sent it."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


Route = Callable[[Query], StreamedReply]


def json_reply(value: object, status: HTTPStatus = HTTPStatus.OK) -> StreamedReply:
    return StreamedReply((json.dumps(value).encode() + b"\n",), JSON, status)


class QueryServer(ListenerThread):
    """Answers at `path` until stopped; `routes`: path prefix -> what answers."""

    failed, recovered = "cannot answer queries", "answering queries"

    def __init__(
        self, path: Path, routes: Mapping[str, Route], *, retry: float = RETRY_SECONDS
    ) -> None:
        super().__init__(
            "ebpflb-query", str(path), partial(_UnixListener, path, routes), retry=retry
        )


class _UnixListener(Listener):
    """A UNIX socket in the file system, accessible only to root.

    Replaces the socket of an agent that has ended, but not that of a running agent, nor anything
    else at that path.
    """

    address_family = socket.AF_UNIX
    request_queue_size = 64

    def __init__(self, path: Path, routes: Mapping[str, Route], stopped: threading.Event) -> None:
        self._path = path
        self._routes = routes
        self._free = threading.Semaphore(MOST_QUERIES)
        self._refusing = threading.Semaphore(MOST_QUERIES)
        super().__init__(str(path), _QueryHandler, stopped)

    def server_bind(self) -> None:
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(self._path)
        super().server_bind()
        # Nobody can connect before listen().
        self._path.chmod(0o600)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer, or refuse if there are too many; if even refusals are too many, close at once."""
        for slots, routes in ((self._free, self._routes), (self._refusing, {"/": _refuse})):
            if slots.acquire(blocking=False):
                try:
                    _QueryHandler(routes, request, client_address, self)
                finally:
                    slots.release()
                return

    def wake(self) -> None:
        # While this socket listens, no other agent can have replaced the path.
        self._path.unlink(missing_ok=True)
        super().wake()


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("the path exists and is not a socket: remove it")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_SECONDS)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError("another agent answers there: give this one another --query-socket")


def _refuse(_: Query) -> StreamedReply:
    text = f"{MOST_QUERIES} others are being answered: end one of them, or try again"
    raise HttpQueryError(text, HTTPStatus.SERVICE_UNAVAILABLE)


class _QueryHandler(RequestHandler):
    """One query and its reply, then closes the connection."""

    protocol_version = "HTTP/1.1"

    def __init__(
        self,
        routes: Mapping[str, Route],
        connection: socket.socket,
        client: Any,
        listener: Listener,
    ) -> None:
        self._routes = routes
        self._stopped = listener.stopped
        super().__init__(connection, client, listener)

    def do_GET(self) -> None:  # noqa: N802  the standard library's name
        self.close_connection = True
        try:
            reply = self._reply()
        except HttpQueryError as error:
            reply = json_reply({"error": str(error)}, error.status)
        except EbpflbError as error:
            reply = json_reply({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        # From here on it may take as long as the client takes to read.
        self.connection.settimeout(None)
        for piece in reply.pieces:
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            elif self._stopped.is_set() or self._client_has_gone():
                return
        self.wfile.write(b"0\r\n\r\n")

    def _reply(self) -> StreamedReply:
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            raise HttpQueryError(f"no path: {error}") from error
        for start, route in self._routes.items():
            if url.path == start or url.path.startswith(start.rstrip("/") + "/"):
                rest = url.path.removeprefix(start).strip("/")
                path = tuple(unquote(part) for part in rest.split("/")) if rest else ()
                return route(Query(path, _parameters(url.query)))
        known = ", ".join(self._routes)
        raise HttpQueryError(f"nothing at {url.path}: there is {known}", HTTPStatus.NOT_FOUND)

    def _client_has_gone(self) -> bool:
        """Whether the client has closed its end; anything more that it sends is ignored."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)


def _parameters(query: str) -> Mapping[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise HttpQueryError("each parameter may be given once")
    return found

# SPDX-License-Identifier: Apache-2.0
"""Answers root's queries over HTTP on a UNIX socket, one query per connection.

A reply may be an endless stream. Each query is answered in threads.
"""

import json
import socket
import stat
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ebpflb.config.values import nearest
from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.observe.http.listener import RETRY_SECONDS, Listener
from ebpflb.web.answers import JSON, Answer, Request, StreamedAnswer, in_thread
from ebpflb.web.server import BACKLOG, Clients, HttpServer

MOST_QUERIES = 16
JSON_LINES = "application/jsonl"
_CONNECT_SECONDS = 10.0


Value = TypeVar("Value")


class Query(NamedTuple):
    """The decoded parts of the path after the route's prefix, and the parameters."""

    path: tuple[str, ...]
    parameters: Mapping[str, str]


class HttpQueryError(Exception):
    """A query that cannot be answered; the text is one line for the user who sent it."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


Route = Callable[[Query], Answer | StreamedAnswer]


def json_reply(value: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(value).encode() + b"\n", JSON, status)


class QueryServer(Listener):
    """Answers at `path` until stopped; `routes`: path prefix -> what answers."""

    failed, recovered = "cannot answer queries", "answering queries"

    def __init__(
        self,
        server: HttpServer,
        path: Path,
        routes: Mapping[str, Route],
        *,
        retry: float = RETRY_SECONDS,
    ) -> None:
        super().__init__(server, str(path), partial(_listen, path), self._respond, retry=retry)
        self._path = path
        self._routes = routes

    def _close(self, listening: socket.socket) -> None:
        # While this socket listens, no other agent can have replaced the path.
        self._path.unlink(missing_ok=True)
        super()._close(listening)

    async def _respond(self, request: Request) -> Answer | StreamedAnswer:
        return await answered(self._routes, self.clients, request)


async def answered(
    routes: Mapping[str, Route], clients: Clients, request: Request
) -> Answer | StreamedAnswer:
    """The answer to a query, in a thread; or why there is none, as JSON."""
    try:
        if request.method != "GET":
            raise HttpQueryError("only GET", HTTPStatus.METHOD_NOT_ALLOWED)  # noqa: TRY301
        if clients.answered > MOST_QUERIES:
            text = f"{MOST_QUERIES} others are being answered: end one of them, or try again"
            raise HttpQueryError(text, HTTPStatus.SERVICE_UNAVAILABLE)  # noqa: TRY301
        return await in_thread(_reply, routes, request.target)
    except HttpQueryError as error:
        return json_reply({"error": str(error)}, error.status)
    except EbpflbError as error:
        return json_reply({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _reply(routes: Mapping[str, Route], target: str) -> Answer | StreamedAnswer:
    try:
        url = urlsplit(target)
    except ValueError as error:
        raise HttpQueryError(f"no path: {error}") from error
    for start, route in routes.items():
        if url.path == start or url.path.startswith(start.rstrip("/") + "/"):
            rest = url.path.removeprefix(start).strip("/")
            path = tuple(unquote(part) for part in rest.split("/")) if rest else ()
            return route(Query(path, _parameters(url.query)))
    known = ", ".join(routes)
    raise HttpQueryError(f"nothing at {url.path}: there is {known}", HTTPStatus.NOT_FOUND)


def _listen(path: Path) -> socket.socket:
    """A socket in the file system, accessible only to root.

    Replaces the socket of an agent that has ended, but not that of a running agent, nor anything
    else at that path.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(path))
        # Nobody can connect before listen().
        path.chmod(0o600)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


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


def parsed(name: str, given: Mapping[str, str], parse: Callable[[object], Value]) -> Value | None:
    """What a parameter says; None if it is not given. HttpQueryError."""
    if name not in given:
        return None
    try:
        return parse(given[name])
    except ValueError as error:
        raise HttpQueryError(f"{name}: {given[name]!r}: {error}") from error


def parameters(query: Query, *known: str) -> Mapping[str, str]:
    """Those that are not empty. HttpQueryError for others than the known ones."""
    if query.path:
        raise HttpQueryError("there is nothing below this path", HTTPStatus.NOT_FOUND)
    for name in query.parameters:
        if name not in known:
            raise HttpQueryError(f"unknown parameter {name!r}{nearest(name, known)}")
    return {name: value for name, value in query.parameters.items() if value}


def _parameters(query: str) -> Mapping[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise HttpQueryError("each parameter may be given once")
    return found

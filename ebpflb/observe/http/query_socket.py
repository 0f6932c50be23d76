# SPDX-License-Identifier: Apache-2.0
"""Answers root's questions over HTTP at a UNIX socket: one question for each connection.

An answer may go on for ever. Then whoever reads slowly keeps a thread waiting and nobody else.
"""

import json
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ebpflb.errors import EbpflbError
from ebpflb.observe.http.listening import RETRY_SECONDS, Listening
from ebpflb.observe.http.request import Request
from ebpflb.observe.http.unix_place import UnixPlace

_log = logging.getLogger("ebpflb.observe")

MOST_QUESTIONS = 16
JSON = "application/json"
JSON_LINES = "application/jsonl"


class Question(NamedTuple):
    """What was asked: the parts of the path behind the route's, and the parameters."""

    path: tuple[str, ...]
    parameters: Mapping[str, str]


class Reply(NamedTuple):
    """An answer in pieces. An empty piece: nothing yet, look whether the client is still there."""

    pieces: Iterable[bytes]
    content_type: str = JSON
    status: HTTPStatus = HTTPStatus.OK


class QuestionError(Exception):
    """A question that has no answer; its text is one line for the person who asked."""

    def __init__(self, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status


Route = Callable[[Question], Reply]


def json_reply(value: object, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    """A value as one line of JSON."""
    return Reply((json.dumps(value).encode() + b"\n",), JSON, status)


class QueryServer:
    """Answers at `path` until stopped; `routes`: the beginning of a path -> what answers.

    Where it cannot listen, that is told once and tried again every 5 seconds.
    """

    def __init__(
        self, path: Path, routes: Mapping[str, Route], *, retry: float = RETRY_SECONDS
    ) -> None:
        self._routes = routes
        self._free = threading.Semaphore(MOST_QUESTIONS)
        self._refusing = threading.Semaphore(MOST_QUESTIONS)
        self._listening = Listening("ebpflb-query", UnixPlace(path), self._take, retry=retry)

    def start(self) -> None:
        """Listen before this returns, if that is possible."""
        self._listening.start()

    def stop(self) -> None:
        """Close and remove the socket; answers under way end within a second."""
        self._listening.stop()

    def _take(self, connection: socket.socket, _: object) -> None:
        with connection:
            if self._free.acquire(blocking=False):
                self._answer(connection, self._routes, self._free)
            elif self._refusing.acquire(blocking=False):
                self._answer(connection, {"/": _refuse}, self._refusing)

    def _answer(
        self, connection: socket.socket, routes: Mapping[str, Route], room: threading.Semaphore
    ) -> None:
        try:
            _Request(connection, routes, self._listening.stopped)
        except OSError:
            _log.debug("a query was not answered to its end", exc_info=True)
        except Exception:  # noqa: BLE001  whatever it is, it ends one answer and not the agent
            _log.exception("a query failed")
        finally:
            room.release()


def _refuse(_: Question) -> Reply:
    text = f"{MOST_QUESTIONS} others are being answered: end one of them, or try again"
    raise QuestionError(text, HTTPStatus.SERVICE_UNAVAILABLE)


class _Request(Request):
    """One question and its answer, then the connection is closed."""

    protocol_version = "HTTP/1.1"

    def __init__(
        self, connection: socket.socket, routes: Mapping[str, Route], stopped: threading.Event
    ) -> None:
        self._routes = routes
        self._stopped = stopped
        super().__init__(connection)

    def answer(self) -> None:
        """Answer one request."""
        self.close_connection = True
        try:
            reply = self._ask()
        except QuestionError as error:
            reply = json_reply({"error": str(error)}, error.status)
        except EbpflbError as error:
            reply = json_reply({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        # From here on only the client's reading decides how long it takes.
        self.connection.settimeout(None)
        for piece in reply.pieces:
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            elif self._stopped.is_set() or _has_gone(self.connection):
                return
        self.wfile.write(b"0\r\n\r\n")

    def _ask(self) -> Reply:
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            raise QuestionError(f"no path: {error}") from error
        for start, route in self._routes.items():
            if url.path == start or url.path.startswith(start.rstrip("/") + "/"):
                rest = url.path.removeprefix(start).strip("/")
                path = tuple(unquote(part) for part in rest.split("/")) if rest else ()
                return route(Question(path, _parameters(url.query)))
        known = ", ".join(self._routes)
        raise QuestionError(f"nothing at {url.path}: there is {known}", HTTPStatus.NOT_FOUND)


def _parameters(query: str) -> Mapping[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise QuestionError("each parameter may be given once")
    return found


def _has_gone(connection: Any) -> bool:
    """Whether the client has closed its end; more words of it do not matter."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)

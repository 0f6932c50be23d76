# SPDX-License-Identifier: Apache-2.0
"""Answers root's questions over HTTP at a UNIX socket: one question for each connection.

An answer may go on for ever. Then whoever reads slowly keeps a thread waiting and nobody else.
"""

import contextlib
import json
import logging
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.log import fields

_log = logging.getLogger("ebpflb.observe")

MOST_QUESTIONS = 16
JSON = "application/json"
JSON_LINES = "application/jsonl"

_RETRY_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_BACKLOG = 64


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

    Where it cannot listen, that is told once and tried again every 5 seconds. A socket that nobody
    answers at is replaced; that of a living agent is left alone, and so is what is no socket.
    """

    def __init__(
        self, path: Path, routes: Mapping[str, Route], *, retry: float = _RETRY_SECONDS
    ) -> None:
        self._path = path
        self._routes = routes
        self._retry = retry
        self._stopped = threading.Event()
        self._free = threading.Semaphore(MOST_QUESTIONS)
        self._refusing = threading.Semaphore(MOST_QUESTIONS)
        self._listening: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="ebpflb-query", daemon=True)

    def start(self) -> None:
        """Listen before this returns, if that is possible."""
        self._listen(is_first=True)
        self._thread.start()

    def stop(self) -> None:
        """Close and remove the socket; answers under way end within a second."""
        self._stopped.set()
        if self._listening:
            # As long as it answers nobody replaces it: what is removed is our own.
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        while not self._listening and not self._stopped.wait(self._retry):
            self._listen(is_first=False)
        if self._listening is None:
            return
        with self._listening as listening:
            while not self._stopped.is_set():
                try:
                    self._take(listening.accept()[0])
                except OSError:
                    # No descriptor is left, or it was told to stop.
                    self._stopped.wait(_PAUSE_SECONDS)

    def _listen(self, *, is_first: bool) -> None:
        try:
            self._listening = _listen_at(self._path)
        except (OSError, ConfigError) as error:
            if is_first:
                text = str(error) if isinstance(error, ConfigError) else str(error.strerror)
                shown = fields(path=str(self._path))
                _log.warning("cannot answer queries: %s; trying again", text, extra=shown)
        else:
            if not is_first:
                _log.info("answering queries", extra=fields(path=str(self._path)))

    def _take(self, connection: socket.socket) -> None:
        if self._free.acquire(blocking=False):
            self._start(connection, self._routes, self._free)
        elif self._refusing.acquire(blocking=False):
            self._start(connection, {"/": _refuse}, self._refusing)
        else:
            connection.close()

    def _start(
        self, connection: socket.socket, routes: Mapping[str, Route], room: threading.Semaphore
    ) -> None:
        arguments = (connection, routes, room)
        threading.Thread(
            target=self._answer, args=arguments, name="ebpflb-answer", daemon=True
        ).start()

    def _answer(
        self, connection: socket.socket, routes: Mapping[str, Route], room: threading.Semaphore
    ) -> None:
        try:
            with connection:
                _Request(connection, routes, self._stopped)
        except OSError:
            _log.debug("a query was not answered to its end", exc_info=True)
        except Exception:  # noqa: BLE001  whatever it is, it ends one answer and not the agent
            _log.exception("a query failed")
        finally:
            room.release()


def _refuse(_: Question) -> Reply:
    text = f"{MOST_QUESTIONS} others are being answered: end one of them, or try again"
    raise QuestionError(text, HTTPStatus.SERVICE_UNAVAILABLE)


def _listen_at(path: Path) -> socket.socket:
    """A socket at `path`, for root alone. OSError; ConfigError when the path is somebody else's."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(str(path))
        # Nobody can connect before listen().
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("there is something that is no socket: remove it")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_REQUEST_SECONDS)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError("another agent answers there: give this one another --query-socket")


class _Request(BaseHTTPRequestHandler):
    """One question and its answer, then the connection is closed."""

    protocol_version = "HTTP/1.1"
    timeout = _REQUEST_SECONDS

    def __init__(
        self, connection: socket.socket, routes: Mapping[str, Route], stopped: threading.Event
    ) -> None:
        self._routes = routes
        self._stopped = stopped
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
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

    def version_string(self) -> str:
        """Say who answers."""
        return "ebpflb"

    def log_message(self, *_: object) -> None:
        """Keep a steady state silent."""


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

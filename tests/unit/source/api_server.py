# SPDX-License-Identifier: Apache-2.0
"""A web server that sends prepared responses and records its requests."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

Query = dict[str, list[str]]


class ReceivedRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    query: Query
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """pieces are sent one by one, as chunks; how it ends: whole, cut (the connection) or silent."""

    status: int = 200
    pieces: tuple[bytes, ...] = ()
    end: str = "whole"


def answer(content: Any, status: int = 200) -> Answer:
    """JSON."""
    return Answer(status, (json.dumps(content).encode(),))


class ApiServer:
    """Runs until closed. token: what a request must bear, if anything."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.requests: list[ReceivedRequest] = []
        self.token = ""
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Conversation)
        # ThreadingHTTPServer gives its handlers nothing else.
        self._server.api = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Let go of who is being kept waiting, and end."""
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _answer(self) -> None:
        api = self._note()
        bearer = self.headers.get("Authorization")
        if api.token and bearer != f"Bearer {api.token}":
            self._send(api, answer({"kind": "Status", "message": "Unauthorized"}, 401))
        else:
            self._send(api, api.answers.popleft())

    def _note(self) -> ApiServer:
        api = self.server.api  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = parse_qs(url.query, keep_blank_values=True)
        api.requests.append(
            ReceivedRequest(self.command, url.path, query, dict(self.headers.items()), body)
        )
        assert isinstance(api, ApiServer)
        return api

    def _send(self, api: ApiServer, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in answer.pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if answer.end == "silent":
            api.released.wait()
        if answer.end == "whole":
            self.wfile.write(b"0\r\n\r\n")

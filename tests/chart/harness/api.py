# SPDX-License-Identifier: Apache-2.0
"""A server that responds like the API server, over TLS, to clients with the token."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ebpflb.web.tls import CERTIFICATE, KEY
from tests.certificates import self_signed

TOKEN = "a-token"  # noqa: S105  of nobody


class FakeApi:
    """Answers each path with the next of its replies; the last one repeats."""

    def __init__(self, account: Path) -> None:
        """`account`: the folder with the token and the certificate, as a pod sees it."""
        self.account = account
        self.answers: dict[str, list[object]] = {}
        self.deleted: list[str] = []
        self.patched: list[tuple[str, list[dict[str, Any]]]] = []
        self.port = 0

    def next_answer(self, path: str) -> object:
        """None for an unknown path."""
        answers = self.answers.get(path, [None])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def fake_api(folder: Path) -> Iterator[FakeApi]:
    """A server with its own certificate at 127.0.0.1."""
    api = FakeApi(folder)
    (folder / "token").write_text(f"{TOKEN}\n")
    self_signed(folder, "api", "IP:127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _request_class(api))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    api.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _request_class(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class _Request(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with JSON."""
            self._answer(api.next_answer)

        def do_DELETE(self) -> None:
            """Record it; 404 for a path whose reply is None."""
            api.deleted.append(self.path)
            self._answer(lambda path: api.answers.get(path, [{}])[0])

        def do_PATCH(self) -> None:
            """Record the patch and its content type."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.patched.append((self.path, body))
            self._answer(lambda _: {})

        def _answer(self, ask: Callable[[str], object]) -> None:
            allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
            answer = ask(self.path) if allowed else None
            self.send_response(401 if not allowed else 404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            """Keep silent."""

    return _Request

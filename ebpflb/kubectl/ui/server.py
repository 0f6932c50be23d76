# SPDX-License-Identifier: Apache-2.0
"""The page's server: for this machine only, and only with the token in its URL.

Any local program, and any web page in the user's browser, may send requests here. Neither knows the
token. If a web page points a name of its own at this server (DNS rebinding), the Host header has
that name, and the request is refused.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from ebpflb.errors import ConfigError, EbpflbError

_ADDRESS = "127.0.0.1"
_REQUEST_SECONDS = 30.0
_MOST_PARAMETERS = 20
_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

# Name after /TOKEN/api/ -> makes the answer from the parameters. EbpflbError is shown.
Pages = Mapping[str, Callable[[Mapping[str, str]], Any]]


class PageServer(ThreadingHTTPServer):
    """Serves `static/` and the pages until it is shut down."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, pages: Pages, port: int = 0) -> None:
        """ConfigError if the port is not available."""
        self.pages = pages
        self.token = secrets.token_urlsafe(24)
        self.static = {
            each.name: each.read_bytes() for each in files(__package__).joinpath("static").iterdir()
        }
        try:
            super().__init__((_ADDRESS, port), _LocalPageHandler)
        except OSError as error:
            raise ConfigError(f"cannot listen at {_ADDRESS}:{port}: {error.strerror}") from error

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host headers that are accepted."""
        return tuple(f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost"))

    def handle_error(self, *_: object) -> None:
        """Ignore a browser that goes away in the middle of an answer."""


class _LocalPageHandler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "ebpflb"
    sys_version = ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            return self._refuse(HTTPStatus.FORBIDDEN, "this page is served to this machine only")
        path, _, query = self.path.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            text = "the token is missing or wrong: open the address that the command printed"
            return self._refuse(HTTPStatus.FORBIDDEN, text)
        if name.startswith("api/"):
            return self._answer(name.removeprefix("api/"), query)
        name = name or "index.html"
        if name not in self.server.static:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        kind = _TYPES[name.rpartition(".")[2]]
        return self._send(HTTPStatus.OK, self.server.static[name], kind)

    def _answer(self, name: str, query: str) -> None:
        page = self.server.pages.get(name)
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        try:
            parameters = parse_qsl(query, max_num_fields=_MOST_PARAMETERS)
            answer = page(dict(parameters))
        except ConfigError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except EbpflbError as error:
            return self._refuse(HTTPStatus.BAD_GATEWAY, str(error))
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST, "too many parameters")
        return self._send(HTTPStatus.OK, json.dumps(answer).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, json.dumps({"error": text}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal is for the command's own output."""

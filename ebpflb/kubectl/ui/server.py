# SPDX-License-Identifier: Apache-2.0
"""The page's server: for this machine only, and only with the token in its URL.

Any local program, and any web page in the user's browser, may send requests here. Neither knows the
token. If a web page points a name of its own at this server (DNS rebinding), the Host header has
that name, and the request is refused.
"""

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Self
from urllib.parse import parse_qsl

from msgspec.json import encode

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.web.answers import Answer, Request, in_thread
from ebpflb.web.server import Clients, HttpServer

ADDRESS = "127.0.0.1"
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
}

# Name after /TOKEN/api/ -> makes the answer from the parameters. EbpflbError is shown.
Pages = Mapping[str, Callable[[Mapping[str, str]], Any]]


class PageServer:
    """Serves `static/` and the pages, from `with` on."""

    def __init__(self, pages: Pages, port: int = 0) -> None:
        """ConfigError if the port is not available."""
        self.token = secrets.token_urlsafe(24)
        self.static = {
            each.name: each.read_bytes() for each in files(__package__).joinpath("static").iterdir()
        }
        self._pages = pages
        try:
            self._socket = socket.create_server((ADDRESS, port))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ConfigError(f"cannot listen at {ADDRESS}:{port}: {reason}") from error
        self.port = int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        self._server = HttpServer()
        self._server.listen(self._socket, self._respond, Clients())
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def wait(self) -> None:
        """Until Ctrl-C."""
        threading.Event().wait()

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host headers that are accepted."""
        return tuple(f"{name}:{self.port}" for name in (ADDRESS, "localhost"))

    async def _respond(self, request: Request) -> Answer:
        if request.method != "GET":
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        if request.hosts not in [(host,) for host in self.hosts]:
            return _refusal(HTTPStatus.FORBIDDEN, "this page is served to this machine only")
        path, _, query = request.target.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            text = "the token is missing or wrong: open the address that the command printed"
            return _refusal(HTTPStatus.FORBIDDEN, text)
        if name.startswith("api/"):
            return await self._answer(name.removeprefix("api/"), query)
        name = name or "index.html"
        if name not in self.static:
            return _refusal(HTTPStatus.NOT_FOUND, "no such page")
        return _sent(self.static[name], _TYPES[name.rpartition(".")[2]])

    async def _answer(self, name: str, query: str) -> Answer:
        page = self._pages.get(name)
        if page is None:
            return _refusal(HTTPStatus.NOT_FOUND, "no such page")
        try:
            parameters = parse_qsl(query, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            return _refusal(HTTPStatus.BAD_REQUEST, "too many parameters")
        try:
            return await in_thread(lambda: _json(page(dict(parameters))))
        except ConfigError as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        except EbpflbError as error:
            return _refusal(HTTPStatus.BAD_GATEWAY, str(error))


def _refusal(status: HTTPStatus, text: str) -> Answer:
    return _json({"error": text}, status)


def _json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return _sent(encode(value), "application/json", status)


def _sent(body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(body, f"{kind}; charset=utf-8", status, _HEADERS)

# SPDX-License-Identifier: Apache-2.0
"""Small HTTP servers in threads: one address each, fixed paths, answers made on the spot."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple

from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.observe.health import Health

_log = logging.getLogger("ebpflb.observe")

_RETRY_SECONDS = 5.0
_REQUEST_SECONDS = 10

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What a path answers."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


Routes = Mapping[str, Callable[[], Answer]]


class Server:
    """Serves `routes` at one address until stopped.

    Where the address cannot be had, that is told once and tried again every 5 seconds: the
    node's Services do not depend on it.
    """

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        *,
        retry: float = _RETRY_SECONDS,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """An empty host means all addresses, of both families where there is IPv6.

        `on_failure` is told where it cannot listen, and why.
        """
        self._address = address
        self._routes = routes
        self._retry = retry
        self._on_failure = on_failure
        self._stopped = threading.Event()
        self._listening: _Tcp | None = None
        self._thread = threading.Thread(target=self._run, name="ebpflb-http", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens, 0 while it does not."""
        return int(self._listening.server_address[1]) if self._listening else 0

    def start(self, *, hard_fail: bool = False) -> None:
        """Listen before this returns, if the address can be had.

        `hard_fail`: ConfigError if it cannot be had.
        """
        self._listen(is_first=True)
        if hard_fail and not self._listening:
            raise ConfigError("cannot listen at {}:{}".format(*self._address))
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and end the thread; answers under way are not waited for."""
        self._stopped.set()
        if listening := self._listening:
            with contextlib.suppress(OSError):
                listening.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        while not self._listening and not self._stopped.wait(self._retry):
            self._listen(is_first=False)
        if self._listening is None:
            return
        with self._listening as listening:
            while not self._stopped.is_set():
                listening.handle_request()

    def _listen(self, *, is_first: bool) -> None:
        address = "{}:{}".format(*self._address)
        shown = fields(address=address)
        try:
            self._listening = _Tcp(*self._address, self._routes)
        except OSError as error:
            if is_first:
                _log.warning("cannot listen: %s; trying again", error.strerror, extra=shown)
                self._on_failure(f"{address}: {error.strerror}")
        else:
            if not is_first:
                _log.info("listening", extra=shown)


def metrics_routes(render: Callable[[], Answer], status: Callable[[], object]) -> Routes:
    """What kube-proxy has on its metrics port, and /status. `render` makes the page /metrics.

    debug_pages.py has the rest of it.
    """
    return {
        "/metrics": render,
        "/proxyMode": lambda: Answer(b"ebpf"),
        "/healthz": lambda: Answer(b"ok"),
        "/status": lambda: Answer(json.dumps(status()).encode(), JSON),
    }


def health_routes(health: Health, count: Callable[[str, int], None]) -> Routes:
    """/healthz and /livez, of which `count` is told the path and the status, and /readyz.

    /readyz is what a rollout waits for: 200 once the node is served.
    """

    def answer(path: str, verdict: tuple[bool, str]) -> Answer:
        good, body = verdict
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        count(path, status)
        return Answer(body.encode(), JSON, status)

    def started() -> Answer:
        if health.is_started:
            return Answer(b"ok")
        return Answer(b"not in sync yet\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    return {
        "/readyz": started,
        "/healthz": lambda: answer("/healthz", health.readiness()),
        "/livez": lambda: answer("/livez", health.liveness()),
    }


class _Tcp(ThreadingTCPServer):
    """Without HTTPServer's look-up of the own host name, which may hang for want of DNS."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        self.routes = routes
        self._both_families = not host and socket.has_dualstack_ipv6()
        host = "::" if self._both_families else host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            only = not self._both_families
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        super().server_bind()

    def handle_error(self, _: Any, client_address: Any) -> None:
        """Say so at debug level only: clients that go away are no business of an operator."""
        _log.debug("a request failed", exc_info=True, extra=fields(client=client_address[0]))


class _Request(BaseHTTPRequestHandler):
    server: _Tcp
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer one request."""
        route = self.server.routes.get(self.path.partition("?")[0])
        answer = route() if route else Answer(b"not found\n", status=HTTPStatus.NOT_FOUND)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  the standard library's name

    def version_string(self) -> str:
        """Say who answers, and no version: that is for those who may read metrics."""
        return "ebpflb"

    def log_message(self, *_: object) -> None:
        """Keep a steady state silent."""

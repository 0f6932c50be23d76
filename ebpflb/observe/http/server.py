# SPDX-License-Identifier: Apache-2.0
"""The HTTP servers of the health and metrics ports: fixed paths, each answered by a function.

A server has one listening thread and one thread per connection. If it cannot listen, it warns
once and keeps trying, because the node's Services do not depend on it.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.observe.health import Health

_log = logging.getLogger("ebpflb.observe")

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
RETRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


class Answer(NamedTuple):
    """A whole response."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


Routes = Mapping[str, Callable[[], Answer]]


class RequestHandler(BaseHTTPRequestHandler):
    """The common part of all HTTP requests to the agent."""

    # Timeout in seconds for a client that neither sends nor reads.
    timeout = 10.0

    def version_string(self) -> str:
        """Value of the Server header, without the version: only readers of metrics may see it."""
        return "ebpflb"

    def log_message(self, *_: object) -> None:
        """Log no requests."""


class Listener(ThreadingMixIn, TCPServer):
    """A listening socket. Each connection gets a thread, which ends with the process."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, address: Any, handler: Callable[..., RequestHandler], stopped: threading.Event
    ) -> None:
        """`stopped` ends `run()`. OSError or ConfigError if it cannot listen."""
        self.stopped = stopped
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. If no file descriptor is left, wait a moment before failing."""
        try:
            return super().get_request()
        except OSError:
            self.stopped.wait(_PAUSE_SECONDS)
            raise

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log the exception that ended a request; only bugs concern the operator."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        shown = fields(client=client_address)
        _log.log(level, "an HTTP request failed", exc_info=True, extra=shown)

    def run(self) -> None:
        """Accept connections until stopped, then close the socket."""
        with self:
            while not self.stopped.is_set():
                self.handle_request()

    def wake(self) -> None:
        """Refuse connections from now on, so that `run()` notices that it was stopped."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class ListenerThread:
    """Creates a listener and runs it until stopped; if that fails, tries again."""

    failed, recovered = "cannot listen", "listening"

    def __init__(
        self,
        name: str,
        address: str,
        listen: Callable[[threading.Event], Listener],
        *,
        retry: float = RETRY_SECONDS,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`name`: the thread's; `address`: as logs show it; `retry`: seconds.

        `on_failure` gets the address and the reason if the first attempt fails.
        """
        self._address = address
        self._listen = listen
        self._retry = retry
        self._on_failure = on_failure
        self._listener: Listener | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, *, hard_fail: bool = False) -> None:
        """Listen before returning, if possible. `hard_fail`: ConfigError if it is not."""
        if error := self._try_to_listen():
            shown = fields(address=self._address)
            _log.warning("%s: %s; retrying", self.failed, error, extra=shown)
            self._on_failure(f"{self._address}: {error}")
            if hard_fail:
                raise ConfigError(f"{self.failed} at {self._address}")
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and end the thread, without waiting for answers in progress."""
        self._stopped.set()
        if self._listener:
            self._listener.wake()
        self._thread.join()

    def _try_to_listen(self) -> str:
        """Return the reason if it cannot listen, or ""."""
        try:
            self._listener = self._listen(self._stopped)
        except ConfigError as error:
            return str(error)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _run(self) -> None:
        while not self._listener and not self._stopped.wait(self._retry):
            if not self._try_to_listen():
                _log.info(self.recovered, extra=fields(address=self._address))
        if self._listener:
            self._listener.run()


class Server(ListenerThread):
    """Serves `routes` on one TCP address. An empty host means all addresses of both families."""

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        *,
        retry: float = RETRY_SECONDS,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(
            "ebpflb-http",
            "{}:{}".format(*address),
            partial(_TcpListener, address, partial(_PageHandler, routes)),
            retry=retry,
            on_failure=on_failure,
        )

    @property
    def port(self) -> int:
        """The port it listens on, 0 while it does not."""
        return int(self._listener.server_address[1]) if self._listener else 0


def metrics_routes(render: Callable[[], Answer], status: Callable[[], object]) -> Routes:
    """kube-proxy's paths on its metrics port, and /status. `render` makes the /metrics page.

    debug_pages.py and slis.py have the other paths of that port.
    """
    return {
        "/metrics": render,
        "/proxyMode": lambda: Answer(b"ebpf"),
        "/status": lambda: Answer(json.dumps(status()).encode(), JSON),
    }


def health_routes(health: Health, count: Callable[[str, int], None]) -> Routes:
    """/healthz and /livez, whose path and status are reported to `count`, and /readyz.

    A rollout waits for /readyz: 200 once the node's Services are programmed, and not while changes
    cannot be read.
    """

    def answer(path: str, verdict: tuple[bool, str]) -> Answer:
        good, body = verdict
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        count(path, status)
        return Answer(body.encode(), JSON, status)

    def ready() -> Answer:
        if why := health.unready():
            return Answer(f"{why}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Answer(b"ok")

    return {
        "/readyz": ready,
        "/healthz": lambda: answer("/healthz", health.readiness()),
        "/livez": lambda: answer("/livez", health.liveness()),
    }


class _TcpListener(Listener):
    def __init__(
        self,
        address: tuple[str, int],
        handler: Callable[..., RequestHandler],
        stopped: threading.Event,
    ) -> None:
        host, port = address
        self._is_dual = not host and socket.has_dualstack_ipv6()
        host = "::" if self._is_dual else host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler, stopped)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not self._is_dual)
        super().server_bind()


class _PageHandler(RequestHandler):
    def __init__(self, routes: Routes, *connection: Any) -> None:
        self._routes = routes
        super().__init__(*connection)

    def do_GET(self) -> None:
        route = self._routes.get(self.path.partition("?")[0])
        answer = route() if route else Answer(b"not found\n", status=HTTPStatus.NOT_FOUND)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  the standard library's name

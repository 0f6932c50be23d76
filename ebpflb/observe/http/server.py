# SPDX-License-Identifier: Apache-2.0
"""Small HTTP servers in threads: one address each, fixed paths, answers made on the spot."""

import json
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.observe.health import Health
from ebpflb.observe.http.listening import RETRY_SECONDS, Listening
from ebpflb.observe.http.request import Request
from ebpflb.observe.http.tcp_place import TcpPlace

_log = logging.getLogger("ebpflb.observe")

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

    Where the address cannot be had, that is told once and tried again every 5 seconds.
    """

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        *,
        retry: float = RETRY_SECONDS,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """An empty host means all addresses, of both families where there is IPv6.

        `on_failure` is told where it cannot listen, and why.
        """
        self._place = TcpPlace(*address)
        self._routes = routes
        self._on_failure = on_failure
        self._listening = Listening("ebpflb-http", self._place, self._answer, retry=retry)

    @property
    def port(self) -> int:
        """Where it listens, 0 while it does not."""
        return self._listening.port

    def start(self, *, hard_fail: bool = False) -> None:
        """Listen before this returns, if the address can be had.

        `hard_fail`: ConfigError if it cannot be had.
        """

        def refused(error: str) -> None:
            self._on_failure(f"{self._place}: {error}")
            if hard_fail:
                raise ConfigError(f"cannot listen at {self._place}")

        self._listening.start(refused)

    def stop(self) -> None:
        """Close the socket and end the thread; answers under way are not waited for."""
        self._listening.stop()

    def _answer(self, connection: socket.socket, client: tuple[str, int]) -> None:
        try:
            with connection:
                _Request(connection, self._routes)
        except Exception:  # noqa: BLE001  clients that go away are no business of an operator
            _log.debug("a request failed", exc_info=True, extra=fields(client=client[0]))


def metrics_routes(render: Callable[[], Answer], status: Callable[[], object]) -> Routes:
    """What kube-proxy has on its metrics port, and /status. `render` makes the page /metrics.

    debug_pages.py and slis.py have the rest of it.
    """
    return {
        "/metrics": render,
        "/proxyMode": lambda: Answer(b"ebpf"),
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


class _Request(Request):
    def __init__(self, connection: socket.socket, routes: Routes) -> None:
        self._routes = routes
        super().__init__(connection)

    def answer(self) -> None:
        """Answer one request."""
        route = self._routes.get(self.path.partition("?")[0])
        answer = route() if route else Answer(b"not found\n", status=HTTPStatus.NOT_FOUND)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = Request.do_GET  # noqa: N815  the standard library's name

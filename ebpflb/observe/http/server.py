# SPDX-License-Identifier: Apache-2.0
"""The health and metrics ports: fixed paths, each answered by a function."""

import asyncio
import gzip
import re
import socket
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from msgspec.json import encode

from ebpflb.observe.health import Health
from ebpflb.observe.http.listener import Listener
from ebpflb.web.answers import JSON, Answer, Request, Respond, in_thread
from ebpflb.web.server import BACKLOG, HttpServer

Routes = Mapping[str, Callable[[], Answer]]
"""By path. One that has other forms has them by path, space and form(): of those, and of text, the
client gets the first that it accepts; if it accepts none, that of ANYTHING, if there is one.
"""

ANYTHING = "*/*"
OPENMETRICS_TYPE = "application/openmetrics-text"

_METHODS = ("GET", "HEAD")
# Even the fastest level makes the metrics of many Services a twentieth as long.
_GZIP_LEVEL = 1
_LEAST_COMPRESSED = 1024
_NEVER = re.compile(r"q=0(\.0*)?")
_TEXT = ("text/plain", "text/*", ANYTHING)
# A client's preference, and what is the same for all names and texts here.
_INDIFFERENT = ("q=", "escaping=", "charset=")


class TcpPort(Listener):
    """Answers on one TCP address. An empty host means all addresses of both families."""

    def __init__(
        self,
        server: HttpServer,
        address: tuple[str, int],
        respond: Respond,
        **options: Any,
    ) -> None:
        """`options`: those of Listener."""
        shown = "{}:{}".format(*address)
        super().__init__(server, shown, partial(_listen, *address), respond, **options)

    @property
    def number(self) -> int:
        """The port it listens on, 0 while it does not."""
        return int(self.socket.getsockname()[1]) if self.socket else 0


def _listen(host: str, port: int) -> socket.socket:
    is_dual = not host and socket.has_dualstack_ipv6()
    host = "::" if is_dual else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
    )


def quick(routes: Routes) -> Respond:
    """Answers from functions that take no time."""

    async def respond(request: Request) -> Answer:
        route = _route(routes, request)
        return route if isinstance(route, Answer) else route()

    return respond


def slow(routes: Routes) -> Respond:
    """Calls each function in a thread. Who asks for the same path meanwhile gets its answer too.

    Long answers are compressed for those who accept that.
    """
    being_made: dict[str, asyncio.Task[Answer]] = {}

    async def respond(request: Request) -> Answer:
        route = _route(routes, request)
        if isinstance(route, Answer):
            return route
        place = _place(routes, request)
        if accepts_gzip(request.encodings):
            place, route = f"{place} gzip", partial(_compressed, route)
        if place not in being_made:
            being_made[place] = asyncio.create_task(in_thread(route))
            being_made[place].add_done_callback(lambda _: being_made.pop(place))
        # A client that goes away ends no answer that others wait for.
        return await asyncio.shield(being_made[place])

    return respond


def form(media_range: str) -> str:
    """A type of the Accept header with those parameters that make a difference, in order."""
    kind, *parameters = (part.strip() for part in media_range.split(";"))
    kept = sorted(each for each in parameters if not each.startswith(_INDIFFERENT))
    return ";".join([kind, *kept])


def accepts_gzip(encodings: str) -> bool:
    """By an Accept-Encoding header (RFC 9110, 12.5.3)."""
    for each in encodings.lower().split(","):
        name, *parameters = ("".join(part.split()) for part in each.split(";"))
        if name == "gzip":
            return not any(_NEVER.fullmatch(parameter) for parameter in parameters)
    return False


def _compressed(make: Callable[[], Answer]) -> Answer:
    answer = make()
    if len(answer.body) < _LEAST_COMPRESSED:
        return answer
    body = gzip.compress(answer.body, _GZIP_LEVEL)
    return answer._replace(body=body, headers={**answer.headers, "Content-Encoding": "gzip"})


def _place(routes: Routes, request: Request) -> str:
    """A key of `routes`; empty if the client accepts no form of what is there."""
    path = request.target.partition("?")[0]
    if not request.accept or not any(each.startswith(f"{path} ") for each in routes):
        return path
    for wanted in map(form, request.accept.split(",")):
        if wanted.partition(";")[0] in _TEXT:
            return path
        if (place := f"{path} {wanted}") in routes:
            return place
    return place if (place := f"{path} {ANYTHING}") in routes else ""


def _route(routes: Routes, request: Request) -> Callable[[], Answer] | Answer:
    """What answers, or why nothing does."""
    if request.method not in _METHODS:
        status = HTTPStatus.METHOD_NOT_ALLOWED
        return Answer(b"only GET and HEAD\n", status=status, headers={"Allow": "GET, HEAD"})
    place = _place(routes, request)
    if not place:
        return Answer(b"no such form\n", status=HTTPStatus.NOT_ACCEPTABLE)
    return routes.get(place, Answer(b"not found\n", status=HTTPStatus.NOT_FOUND))


def metrics_routes(render: Callable[[], Answer], status: Callable[[], object]) -> Routes:
    """kube-proxy's paths on its metrics port, and /status. `render` makes the /metrics page.

    debug_pages.py has the other paths of that port.
    """
    return {
        "/metrics": render,
        "/proxyMode": lambda: Answer(b"ebpf"),
        "/status": lambda: Answer(encode(status()), JSON),
    }


def openmetrics_routes(render: Callable[[], Answer], text: Callable[[], Answer]) -> Routes:
    """/metrics in that format, which `render` makes, for who asks for it before text."""
    return {
        f"/metrics {OPENMETRICS_TYPE}": render,
        f"/metrics {OPENMETRICS_TYPE};version=1.0.0": render,
        f"/metrics {ANYTHING}": text,
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

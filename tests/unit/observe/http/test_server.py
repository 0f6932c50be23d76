# SPDX-License-Identifier: Apache-2.0
import gzip
import http.client
import json
import logging
import socket
import threading
import time
from contextlib import closing
from functools import partial
from http import HTTPStatus

import pytest

from ebpflb.observe.health import READ_PATIENCE_SECONDS, Health
from ebpflb.observe.http.server import (
    TcpPort,
    health_routes,
    metrics_routes,
    openmetrics_routes,
    quick,
    slow,
)
from ebpflb.web.answers import Answer
from tests.ports import free_port

SECONDS = 60


@pytest.fixture
def serve(http_server):
    servers = []

    def start(routes, host="127.0.0.1", port=0, *, told=lambda _: None, **options):
        servers.append(TcpPort(http_server, (host, port), quick(routes), **options))
        servers[-1].start(on_failure=told)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def get(server, path, method="GET", host="127.0.0.1", **headers):
    with closing(http.client.HTTPConnection(host, server.number, timeout=SECONDS)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_health_paths_have_kube_proxys_headers_and_are_counted(serve):
    health, counted = Health(("IPv4",)), []
    server = serve(health_routes(health, lambda *each: counted.append(each)))
    status, headers, body = get(server, "/healthz")
    assert status == HTTPStatus.OK
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"lastUpdated" in body
    health.set_eligible(False)
    assert get(server, "/healthz")[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert get(server, "/livez?verbose")[0] == HTTPStatus.OK
    assert counted == [("/healthz", 200), ("/healthz", 503), ("/livez", 200)]


def test_a_node_is_ready_once_it_was_in_sync(serve):
    now = [0.0]
    health = Health(("IPv4",), monotonic=lambda: now[0])
    server = serve(health_routes(health, lambda *_: None))
    assert get(server, "/readyz")[0] == HTTPStatus.SERVICE_UNAVAILABLE
    health.synced()
    assert get(server, "/readyz")[0] == HTTPStatus.OK
    health.queued()
    assert get(server, "/readyz")[0] == HTTPStatus.OK
    health.set_readable(False)
    assert get(server, "/readyz")[0] == HTTPStatus.OK
    now[0] += READ_PATIENCE_SECONDS
    status, _, body = get(server, "/readyz")
    assert (status, body) == (503, b"changes cannot be read: see `ebpflb status`\n")


def test_the_metrics_port_has_kube_proxys_paths_and_a_status(serve):
    server = serve(metrics_routes(lambda: Answer(b"page"), lambda: {"in_sync": True}))
    assert get(server, "/proxyMode")[2] == b"ebpf"
    assert get(server, "/metrics")[2] == b"page"
    assert json.loads(get(server, "/status")[2]) == {"in_sync": True}


def test_other_paths_and_methods(serve):
    server = serve({"/a": lambda: Answer(b"body")})
    assert get(server, "/b")[0] == HTTPStatus.NOT_FOUND
    with socket.create_connection(("127.0.0.1", server.number)) as client:
        client.sendall(b"HEAD /a HTTP/1.0\r\n\r\n")
        raw = b"".join(iter(lambda: client.recv(4096), b""))
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Length: 4\r\n" in raw
    assert raw.endswith(b"\r\n\r\n")
    status, headers, _ = get(server, "/a", "DELETE")
    assert (status, headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


def test_an_empty_host_means_both_families(serve):
    server = serve({"/": lambda: Answer(b"x")}, host="")
    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        assert get(server, "/", host=host)[0] == HTTPStatus.OK


def test_an_address_that_is_taken_is_tried_again(serve, caplog):
    caplog.set_level(logging.INFO)
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        server = serve({"/": lambda: Answer(b"x")}, port=port, retry=0.01)
        assert server.number == 0
        time.sleep(0.05)
    deadline = time.monotonic() + SECONDS
    while len(caplog.records) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert get(server, "/")[0] == HTTPStatus.OK
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_address_that_is_taken_is_reported_once(serve):
    told: list[str] = []
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        serve({}, port=port, retry=0.01, told=told.append)
        time.sleep(0.05)
    assert told == [f"127.0.0.1:{port}: Address already in use"]


def test_stopping_closes_the_port_at_once(serve):
    port = free_port()
    serve({}, port=port).stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), SECONDS)


def test_stopping_while_the_address_is_taken(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = serve({}, port=taken.getsockname()[1], retry=60)
        server.stop()


def wait_until(is_so):
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


class Gate:
    """A page that is not rendered until the gate is opened."""

    def __init__(self):
        self.begun, self.opened = threading.Event(), threading.Event()
        self.made = 0

    def __call__(self):
        self.made += 1
        self.begun.set()
        assert self.opened.wait(SECONDS)
        return Answer(b"page")


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


def ask(port, path):
    """A connection that waits for its answer."""
    client = socket.create_connection(("127.0.0.1", port), SECONDS)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


def read(client):
    with client:
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_who_asks_while_a_page_is_made_gets_it_too_and_other_paths_wait_for_nobody(
    http_server, gate
):
    port = TcpPort(http_server, ("127.0.0.1", 0), slow({"/slow": gate, "/": lambda: Answer(b"x")}))
    port.start()
    clients = [ask(port.number, "/slow") for _ in range(20)]
    assert gate.begun.wait(SECONDS)
    wait_until(lambda: port.clients.answered == 20)
    clients.pop(0).close()
    assert get(port, "/")[0] == HTTPStatus.OK
    gate.opened.set()
    assert all(read(each).endswith(b"page") for each in clients)
    assert gate.made == 1
    port.stop()


def test_who_wants_another_form_does_not_get_what_is_being_made(http_server):
    asked, done = threading.Event(), threading.Event()

    def text():
        asked.set()
        assert done.wait(SECONDS)
        return Answer(b"text")

    routes = {"/a": text, "/a application/json;v=1": lambda: Answer(b"{}")}
    server = TcpPort(http_server, ("127.0.0.1", 0), slow(routes))
    server.start()
    found = []
    first = threading.Thread(target=lambda: found.append(get(server, "/a")[2]))
    first.start()
    try:
        assert asked.wait(SECONDS)
        assert get(server, "/a", Accept="application/json; v=1")[2] == b"{}"
        assert get(server, "/a", Accept="application/json")[0] == HTTPStatus.NOT_ACCEPTABLE
    finally:
        done.set()
        first.join()
        server.stop()
    assert found == [b"text"]


@pytest.mark.parametrize(
    ("encodings", "is_compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("", False),
        ("br", False),
        ("gzip; q=0", False),
        ("gzip;q=0.000, deflate", False),
    ],
)
def test_long_answers_are_compressed_for_those_who_accept_it(http_server, encodings, is_compressed):
    page = b"one_series 1\n" * 10_000
    routes = {"/metrics": lambda: Answer(page), "/short": lambda: Answer(b"x")}
    server = TcpPort(http_server, ("127.0.0.1", 0), slow(routes))
    server.start()
    headers = {"Accept-Encoding": encodings}
    status, told, body = get(server, "/metrics", **headers)
    assert status == HTTPStatus.OK
    assert told.get("Content-Encoding", "") == ("gzip" if is_compressed else "")
    assert (gzip.decompress(body) if is_compressed else body) == page
    assert (len(body) < len(page) // 10) == is_compressed
    assert get(server, "/metrics", "HEAD", **headers)[1]["Content-Length"] == str(len(body))
    assert get(server, "/short", **headers)[2] == b"x"
    assert get(server, "/none", **headers)[0] == HTTPStatus.NOT_FOUND
    server.stop()


# Of Prometheus 2.42 and 3, and of one that is told to prefer text.
OLDER = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
NEWER = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.2"
)
TEXT_FIRST = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5"


@pytest.mark.parametrize(
    ("accept", "body"),
    [
        (OLDER, b"open" * 1000),
        (NEWER, b"open" * 1000),
        ("application/openmetrics-text; charset=utf-8", b"open" * 1000),
        (TEXT_FIRST, b"text" * 1000),
        ("application/openmetrics-text;version=0.0.1,*/*", b"text" * 1000),
        ("*/*", b"text" * 1000),
        ("application/json", b"text" * 1000),
        ("", b"text" * 1000),
    ],
)
@pytest.mark.parametrize("encodings", ["", "gzip"])
def test_metrics_are_openmetrics_for_who_asks_for_that(http_server, accept, body, encodings):
    text, openmetrics = (partial(Answer, word * 1000) for word in (b"text", b"open"))
    routes = {**metrics_routes(text, dict), **openmetrics_routes(openmetrics, text)}
    server = TcpPort(http_server, ("127.0.0.1", 0), slow(routes))
    server.start()
    headers = {"Accept": accept, "Accept-Encoding": encodings}
    status, told, found = get(server, "/metrics?a=b", **headers)
    assert status == HTTPStatus.OK
    assert told.get("Content-Encoding", "") == encodings
    assert (gzip.decompress(found) if encodings else found) == body
    server.stop()

# SPDX-License-Identifier: Apache-2.0
import http.client
import json
import logging
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus

import pytest

from ebpflb.observe.health import READ_PATIENCE_SECONDS, Health
from ebpflb.observe.http.server import Answer, Server, health_routes, metrics_routes
from tests.ports import free_port

SECONDS = 60


@pytest.fixture
def serve():
    servers = []

    def start(routes, host="127.0.0.1", port=0, **options):
        servers.append(Server((host, port), routes, **options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def get(server, path, method="GET", host="127.0.0.1"):
    with closing(http.client.HTTPConnection(host, server.port, timeout=SECONDS)) as connection:
        connection.request(method, path)
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
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"HEAD /a HTTP/1.0\r\n\r\n")
        raw = b"".join(iter(lambda: client.recv(4096), b""))
    assert raw.startswith(b"HTTP/1.0 200 ")
    assert raw.endswith(b"Content-Length: 4\r\n\r\n")
    assert get(server, "/a", "DELETE")[0] == HTTPStatus.NOT_IMPLEMENTED


def test_an_empty_host_means_both_families(serve):
    server = serve({"/": lambda: Answer(b"x")}, host="")
    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        assert get(server, "/", host=host)[0] == HTTPStatus.OK


def test_an_address_that_is_taken_is_tried_again(serve, caplog):
    caplog.set_level(logging.INFO)
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        server = serve({"/": lambda: Answer(b"x")}, port=port, retry=0.01)
        assert server.port == 0
        time.sleep(0.05)
    deadline = time.monotonic() + SECONDS
    while len(caplog.records) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert get(server, "/")[0] == HTTPStatus.OK
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_address_that_is_taken_is_told_once(serve):
    told: list[str] = []
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        serve({}, port=port, retry=0.01, on_failure=told.append)
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


@pytest.fixture
def no_descriptors():
    """Take all that the process may have, which may have more; what is called gives them back."""
    with ExitStack() as stack:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)

        def take():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            taken = stack.enter_context(ExitStack())
            taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            with suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(0))
            return taken.close

        yield take


def test_without_a_free_descriptor_clients_wait_and_no_cpu_is_used_up(serve, no_descriptors):
    others = set(threading.enumerate())
    server = serve({"/": lambda: Answer(b"x")})
    (thread,) = set(threading.enumerate()) - others
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    with socket.socket() as client:
        client.settimeout(SECONDS)
        give_back = no_descriptors()
        client.connect(("127.0.0.1", server.port))
        began = time.clock_gettime(clock)
        time.sleep(0.5)
        used = time.clock_gettime(clock) - began
        give_back()
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 200"
    assert used < 0.1


def test_a_client_that_sends_rubbish_or_nothing_does_no_harm(serve, capfd):
    server = serve({"/": lambda: Answer(b"x" * 1_000_000)})
    for raw in (b"\x16\x03\x01\x00\xff", b"GET", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(raw)
    assert get(server, "/")[0] == HTTPStatus.OK
    assert capfd.readouterr().err == ""

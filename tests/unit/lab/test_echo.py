# SPDX-License-Identifier: Apache-2.0
"""The pod's server, as a process on this machine's loopback."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebpflb.lab import echo
from tests.ports import free_port

SECONDS = 60
LOOPBACK = pytest.mark.parametrize("host", ["127.0.0.1", "::1"])


@pytest.fixture(scope="module")
def port():
    number = free_port()
    command = [sys.executable, "-I", "-S", str(Path(echo.__file__))]
    identity = ["--pod", "pod-1-1", "--node", "node1", "--port", str(number)]
    process = subprocess.Popen([*command, *identity])
    try:
        while True:
            assert process.poll() is None
            try:
                socket.create_connection(("::1", number)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield number
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def connect(port):
    opened = []

    def connection(host="127.0.0.1", kind=socket.SOCK_STREAM):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, kind)
        opened.append(sock)
        sock.settimeout(SECONDS)
        sock.connect((host, port))
        return sock

    yield connection
    for sock in opened:
        sock.close()


@pytest.fixture
def browse(port):
    opened = []

    def connection(host="127.0.0.1"):
        opened.append(http.client.HTTPConnection(host, port, timeout=SECONDS))
        return opened[-1]

    yield connection
    for each in opened:
        each.close()


@LOOPBACK
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_who_reports_both_ends_as_the_pod_sees_them(connect, port, host, kind):
    sock = connect(host, kind)
    sock.send(b"who\n")
    assert json.loads(sock.recv(4096)) == {
        "pod": "pod-1-1",
        "node": "node1",
        "protocol": "TCP" if kind == socket.SOCK_STREAM else "UDP",
        "client_address": host,
        "client_port": sock.getsockname()[1],
        "local_address": host,
        "local_port": port,
    }


def test_an_empty_line_is_answered_with_the_name_as_often_as_asked(connect):
    sock = connect()
    for _ in range(3):
        sock.send(b"\n")
        assert sock.recv(4096) == b"pod-1-1\n"


def test_an_empty_datagram_is_answered_with_the_name(connect):
    sock = connect(kind=socket.SOCK_DGRAM)
    sock.send(b"")
    assert sock.recv(4096) == b"pod-1-1"


def test_a_large_datagram_comes_back_whole(connect):
    sock = connect(kind=socket.SOCK_DGRAM)
    sock.send(b"echo " + b"x" * 30000)
    assert sock.recv(65536) == b"x" * 30000


def test_a_datagram_is_answered_from_the_address_that_was_asked(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.bind(("127.0.0.1", 0))
        sock.sendto(b"who", ("127.0.0.7", port))
        answer, peer = sock.recvfrom(4096)
    assert peer == ("127.0.0.7", port)
    assert json.loads(answer)["local_address"] == "127.0.0.7"


def test_an_unknown_command_is_reported_and_the_connection_stays(connect):
    sock = connect()
    sock.send(b"what\n")
    assert sock.recv(4096).startswith(b"error: ")
    sock.send(b"echo a b\n")
    assert sock.recv(4096) == b"a b\n"


def test_the_server_waits_for_the_client_to_close(connect):
    sock = connect()
    sock.send(b"\n")
    sock.recv(4096)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(4096) == b""


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/", 200, r'\{"pod": "pod-1-1", .*"protocol": "TCP".*\}\n'),
        ("/hostname", 200, "pod-1-1"),
        ("/clientip", 200, r"127\.0\.0\.1:\d+"),
        ("/clientip?x=1", 200, r"127\.0\.0\.1:\d+"),
        ("/healthz", 200, "ok\n"),
        ("/none", 404, "not found\n"),
    ],
)
def test_pages(browse, path, status, text):
    page = browse()
    page.request("GET", path)
    answer = page.getresponse()
    assert answer.status == status
    assert re.fullmatch(text, answer.read().decode())


def test_an_ipv6_client_reads_its_address_in_brackets(browse):
    page = browse("::1")
    page.request("GET", "/clientip")
    assert page.getresponse().read().startswith(b"[::1]:")


def test_a_connection_serves_several_requests_and_large_bodies(browse):
    page = browse()
    for size in (0, 2000, 1_000_000):
        page.request("POST", "/echo", body=b"y" * size)
        answer = page.getresponse()
        assert answer.read() == b"y" * size
        assert not answer.will_close


def test_connection_close_is_honoured(connect):
    sock = connect()
    sock.send(b"GET /hostname HTTP/1.1\r\nConnection: close\r\n\r\n")
    received = b""
    while more := sock.recv(4096):
        received += more
    assert received.endswith(b"\r\n\r\npod-1-1")


@pytest.mark.parametrize(
    "nonsense",
    [b"GET HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"z" * 70000],
)
def test_nonsense_ends_only_its_own_connection(connect, nonsense):
    bad, good = connect(), connect()
    bad.sendall(nonsense)
    bad.shutdown(socket.SHUT_WR)
    try:
        while bad.recv(4096):
            pass
    except ConnectionError:
        pass
    good.send(b"\n")
    assert good.recv(4096) == b"pod-1-1\n"


def test_a_datagram_that_may_be_an_answer_is_not_answered(connect):
    sock = connect(kind=socket.SOCK_DGRAM)
    sock.send(b"pod-1-1")
    sock.send(b"who")
    assert sock.recv(4096).startswith(b"{")

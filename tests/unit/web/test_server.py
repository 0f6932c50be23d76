# SPDX-License-Identifier: Apache-2.0
"""The server over real sockets, with clients that are slow, many, or not HTTP clients at all."""

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ebpflb.web import connection as limits
from ebpflb.web.answers import Answer, Request, StreamedAnswer, in_thread
from ebpflb.web.server import Clients
from tests.unit.web.served import (
    BROKEN_OFF,
    HALF,
    LARGE,
    OK,
    REQUEST,
    SECONDS,
    endless,
    is_dropped,
    read,
    read_body,
    wait_until,
)


def send_for_ever(client: socket.socket, what: bytes, pause: float = 0) -> None:
    while True:
        client.sendall(what)
        time.sleep(pause)


@contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Let this process have so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = max(number, before[1]) if before[1] != resource.RLIM_INFINITY else before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_four_thousand_half_sent_requests_keep_nobody_from_an_answer(serve):
    served = serve()
    threads = threading.active_count()
    with descriptors(8192), ExitStack() as stack:
        for number in range(4000):
            stack.enter_context(served.connect(HALF))
            if number % 500 == 499:
                assert served.status() == 200
        assert len(served.clients) <= 256
        assert threading.active_count() == threads


def test_of_too_many_connections_the_oldest_without_a_complete_request_goes(serve):
    served = serve(StreamedAnswer(endless()), most=3)
    answered = served.connect(REQUEST)
    wait_until(lambda: served.clients.answered == 1)
    oldest, *others = (served.connect(HALF) for _ in range(3))
    assert is_dropped(oldest)
    assert (len(served.clients), served.clients.answered) == (3, 1)
    for each in (answered, *others):
        each.close()


def test_if_all_are_being_answered_the_oldest_goes(serve):
    served = serve(StreamedAnswer(endless()), most=1)
    oldest = served.connect(REQUEST)
    wait_until(lambda: served.clients.answered == 1)
    served.connect(REQUEST).close()
    with pytest.raises(BROKEN_OFF), oldest:
        read_body(oldest)


def test_a_request_that_trickles_in_is_dropped_at_its_deadline(serve, monkeypatch):
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 0.3)
    served = serve()
    with pytest.raises(BROKEN_OFF), served.connect(HALF) as client:
        send_for_ever(client, b"x", pause=0.01)
    assert not served.requests


def test_a_client_that_does_not_read_its_answer_is_dropped_at_its_deadline(serve, monkeypatch):
    monkeypatch.setattr(limits, "_RESPONSE_SECONDS", 0.1)
    served = serve(LARGE)
    client = served.connect(REQUEST)
    wait_until(lambda: served.requests and not len(served.clients))
    with pytest.raises(BROKEN_OFF), client:
        read_body(client)


def test_a_client_that_does_not_read_delays_nobody(serve):
    served = serve(LARGE)
    with served.connect(REQUEST):
        wait_until(lambda: served.requests)
        assert len(read(served.connect(REQUEST))) > len(LARGE.body)


def test_a_body_that_never_ends_is_not_read_for_ever(serve):
    served = serve()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with pytest.raises(BROKEN_OFF), served.connect(head) as client:
        send_for_ever(client, b"10000\r\n" + bytes(0x10000) + b"\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"HEAD / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.0\n\n", 200),
        (b"GET / HTTP/1.1\r\nHost: \x91\r\n\r\n", 200),
        (REQUEST + REQUEST, 200),
    ],
)
def test_any_bytes_get_one_response(serve, sent, status, caplog):
    served = serve()
    answer = read(served.connect(sent))
    assert int(answer[9:12]) == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer
    assert not caplog.records


def test_a_request_may_come_byte_by_byte(serve):
    client = serve().connect()
    for each in REQUEST:
        client.sendall(bytes([each]))
    assert read(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_may_close_its_end_after_its_request(serve):
    client = serve(LARGE).connect(REQUEST)
    client.shutdown(socket.SHUT_WR)
    assert len(read(client)) > len(LARGE.body)


def test_a_client_that_closes_its_end_in_the_middle_is_reported(serve):
    client = serve().connect(HALF)
    client.shutdown(socket.SHUT_WR)
    assert read(client).startswith(b"HTTP/1.1 400 ")


def test_a_body_that_comes_late_does_not_destroy_the_answer(serve):
    served = serve()
    client = served.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
    wait_until(lambda: served.requests)
    client.sendall(b"12")
    assert read(client).startswith(b"HTTP/1.1 200 ")


def test_pieces_are_chunks_and_for_an_old_client_what_comes_until_the_end(serve):
    def pieces() -> Iterator[bytes]:
        yield from (b"one ", b"", b"two")

    served = serve(StreamedAnswer(pieces()))
    assert read(served.connect(REQUEST)).endswith(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")
    served.answer = StreamedAnswer(pieces())
    assert read(served.connect(b"GET / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\none two")


def test_a_bug_in_an_answer_is_logged_and_ends_nothing(serve, caplog):
    def bug() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    served = serve(StreamedAnswer(bug()))
    read(served.connect(REQUEST))
    wait_until(lambda: "an HTTP request failed" in caplog.text)
    served.answer = OK
    assert served.status() == 200


def test_a_bug_at_the_end_of_a_stream_is_logged_and_ends_nothing(serve, caplog):
    def bug() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * (1 << 14)
        finally:
            raise ZeroDivisionError

    served = serve(StreamedAnswer(bug()))
    with served.connect(REQUEST) as client:
        assert client.recv(1)
    wait_until(lambda: "the end of an answer failed" in caplog.text)
    served.answer = OK
    assert served.status() == 200


def test_a_stream_that_is_being_made_ends_after_its_client(serve):
    """Its generator cannot be closed while it runs."""
    goes_on, ended = threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        try:
            yield b"first"
            assert goes_on.wait(SECONDS)
            yield b""
        finally:
            ended.set()

    served = serve(StreamedAnswer(pieces()), most=1)
    with served.connect(REQUEST) as oldest:
        assert oldest.recv(1)
        served.answer = OK
        # It takes the place of the first one.
        assert served.status() == 200
    goes_on.set()
    assert ended.wait(SECONDS)


def test_work_in_a_thread_raises_where_it_is_awaited(http_server):
    async def respond(_: Request) -> Answer:
        try:
            await in_thread(int, "x")
        except ValueError as error:
            return Answer(str(error).encode())
        return Answer(b"")

    listening = socket.create_server(("127.0.0.1", 0))
    http_server.listen(listening, respond, Clients())
    client = socket.create_connection(listening.getsockname(), SECONDS)
    client.sendall(REQUEST)
    assert read(client).endswith(b"invalid literal for int() with base 10: 'x'")
    http_server.close(listening)


_FEW_DESCRIPTORS = """
import os, resource, socket, sys
from contextlib import suppress
from ebpflb.web.answers import Answer
from ebpflb.web.server import Clients, HttpServer

async def respond(_):
    return Answer(b"ok")

listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server = HttpServer()
server.listen(listening, respond, Clients())
taken = []
with suppress(OSError):
    while len(taken) < int(sys.argv[1]):
        taken.append(os.dup(0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
server.stop()
print("stopped")
"""


@pytest.mark.parametrize("taken", [0, 10_000])
def test_a_process_without_a_free_descriptor_still_answers(taken):
    """64 descriptors, and the rest of the process has taken none of them, or all."""
    command = [sys.executable, "-c", _FEW_DESCRIPTORS, str(taken)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        with ExitStack() as stack:
            for _ in range(200):
                client = socket.create_connection(("127.0.0.1", port), SECONDS)
                stack.enter_context(client).sendall(HALF)
            client = socket.create_connection(("127.0.0.1", port), SECONDS)
            client.sendall(REQUEST)
            assert read(client).startswith(b"HTTP/1.1 200 ")
        assert process.communicate() == ("stopped\n", "")

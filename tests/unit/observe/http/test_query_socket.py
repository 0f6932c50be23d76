# SPDX-License-Identifier: Apache-2.0
import http.client
import json
import logging
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing

import pytest

from ebpflb.errors import MapError
from ebpflb.observe.http.query_socket import (
    MOST_QUERIES,
    HttpQueryError,
    Query,
    QueryServer,
    json_reply,
    parameters,
    parsed,
)
from ebpflb.web.answers import StreamedAnswer

SECONDS = 60


class Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=SECONDS)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(self.path))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "agent.sock"


@pytest.fixture
def serve(http_server, path):
    with ExitStack() as stack:

        def start(routes=None, **options):
            server = QueryServer(http_server, path, routes or {"/v1/echo": echo}, **options)
            server.start()
            stack.callback(server.stop)
            return server

        yield start


def echo(question):
    return json_reply([*question.path, dict(question.parameters)])


def ask(path, target):
    with closing(Connection(path)) as connection:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def wait_until(is_so):
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def test_a_route_gets_the_rest_of_the_path_and_the_parameters(serve, path):
    serve()
    assert ask(path, "/v1/echo") == (200, [{}])
    assert ask(path, "/v1/echo/a%2Fb/c?x=1&y=") == (200, ["a/b", "c", {"x": "1", "y": ""}])


def test_only_root_may_ask(serve, path):
    serve()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_parameters_without_a_value_are_not_given():
    query = Query((), {"namespace": "shop", "service": ""})
    assert parameters(query, "namespace", "service", "from") == {"namespace": "shop"}
    assert parameters(Query((), {})) == {}


@pytest.mark.parametrize(
    ("query", "known", "status", "text"),
    [
        (Query((), {"nmespace": "x"}), ("namespace",), 400, "unknown parameter 'nmespace' (did"),
        (Query((), {"x": ""}), ("namespace",), 400, "unknown parameter 'x'"),
        (Query((), {"x": "1"}), (), 400, "unknown parameter 'x'"),
        (Query(("a",), {}), ("namespace",), 404, "there is nothing below this path"),
    ],
)
def test_of_what_is_not_known_nothing_is_taken(query, known, status, text):
    with pytest.raises(HttpQueryError, match=re.escape(text)) as raised:
        parameters(query, *known)
    assert raised.value.status == status


def test_a_parameter_says_what_its_parser_makes_of_it():
    assert parsed("limit", {"limit": "7"}, lambda value: int(str(value))) == 7
    assert parsed("limit", {}, lambda _: 1) is None


def test_a_parameter_that_its_parser_refuses_is_named_with_its_value():
    def refuse(_):
        raise ValueError("want a number")

    with pytest.raises(HttpQueryError, match=r"^limit: 'x\\ny': want a number$") as raised:
        parsed("limit", {"limit": "x\ny"}, refuse)
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v1/other", 404, "nothing at /v1/other: there is /v1/echo, /v1/wrong, /v1/maps"),
        ("/v1/echoes", 404, "nothing at /v1/echoes"),
        ("/v1/echo?x=1&x=2", 400, "once"),
        ("/v1/wrong", 400, "no such thing"),
        ("/v1/maps", 500, "map lb_names: lookup failed"),
    ],
)
def test_what_cannot_be_answered_gives_one_line(serve, path, target, status, text):
    def wrong(_):
        raise HttpQueryError("no such thing")

    def broken(_):
        raise MapError("lb_names", "lookup", 5)

    serve({"/v1/echo": echo, "/v1/wrong": wrong, "/v1/maps": broken})
    answered, error = ask(path, target)
    assert answered == status
    assert text in error["error"]


def test_a_bug_in_an_answer_ends_neither_the_server_nor_the_agent(serve, path, caplog):
    def bug(_):
        raise ZeroDivisionError

    serve({"/bug": bug, "/v1/echo": echo})
    with pytest.raises(http.client.RemoteDisconnected):
        ask(path, "/bug")
    assert ask(path, "/v1/echo")[0] == 200
    wait_until(lambda: "an HTTP request failed" in caplog.text)


def test_a_stream_goes_on_until_its_client_goes(serve, path):
    ended = threading.Event()

    def stream(_):
        def pieces():
            try:
                yield b"first\n"
                while True:
                    time.sleep(0.01)
                    yield b""
            finally:
                ended.set()

        return StreamedAnswer(pieces())

    serve({"/stream": stream})
    connection = Connection(path)
    connection.request("GET", "/stream")
    answer = connection.getresponse()
    assert answer.readline() == b"first\n"
    assert not ended.wait(0.1)
    answer.close()
    connection.close()
    assert ended.wait(SECONDS)


@pytest.mark.parametrize("piece", [b"", b"x" * (1 << 14)], ids=["quiet", "busy"])
def test_a_stream_ends_with_a_client_that_leaves_something_unread(serve, path, piece):
    ended = threading.Event()

    def stream(_):
        def pieces():
            try:
                yield b"first\n"
                while True:
                    time.sleep(0.01)
                    yield piece
            finally:
                ended.set()

        return StreamedAnswer(pieces())

    serve({"/stream": stream})
    with closing(Connection(path)) as connection:
        connection.request("GET", "/stream")
        assert connection.sock.recv(1)
    assert ended.wait(SECONDS)


def endless(_):
    def pieces():
        while True:
            time.sleep(0.01)
            yield b""

    return StreamedAnswer(pieces())


def test_no_more_than_so_many_are_answered_at_once(serve, path):
    serve({"/stream": endless, "/v1/echo": echo})
    with ExitStack() as stack:
        for _ in range(MOST_QUERIES):
            connection = stack.enter_context(closing(Connection(path)))
            connection.request("GET", "/stream")
            stack.callback(connection.getresponse().close)
        status, error = ask(path, "/v1/echo")
        assert status == 503
        assert error["error"].startswith("16 others are being answered")
    wait_until(lambda: ask(path, "/v1/echo")[0] == 200)


def test_a_client_that_reads_nothing_keeps_nobody_else_waiting(serve, path):
    serve({"/flood": lambda _: StreamedAnswer(iter(lambda: bytes(65536), None)), "/v1/echo": echo})
    with closing(Connection(path)) as connection:
        connection.request("GET", "/flood")
        time.sleep(0.1)
        assert ask(path, "/v1/echo")[0] == 200


def test_stopping_ends_streams_and_removes_the_socket(serve, path):
    server = serve({"/stream": endless})
    with closing(Connection(path)) as connection:
        connection.request("GET", "/stream")
        answer = connection.getresponse()
        server.stop()
        assert not path.exists()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


def test_the_socket_of_an_agent_that_was_killed_is_replaced(serve, path):
    path.parent.mkdir()
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.is_socket()
    serve()
    assert ask(path, "/v1/echo")[0] == 200


def test_the_socket_of_a_living_agent_is_left_alone(serve, path, caplog):
    caplog.set_level(logging.INFO)
    first = serve()
    second = serve({"/second": echo}, retry=0.01)
    assert "another agent answers there: give this one another --query-socket" in caplog.text
    assert ask(path, "/v1/echo")[0] == 200
    first.stop()
    wait_until(lambda: "answering queries" in caplog.text)
    assert ask(path, "/second")[0] == 200
    second.stop()


def test_the_socket_of_the_next_agent_is_not_removed_by_the_one_before(
    http_server, serve, path, monkeypatch
):
    first = serve()
    close = http_server.close

    def close_and_serve(listening):
        close(listening)
        monkeypatch.undo()
        serve({"/second": echo})

    monkeypatch.setattr(http_server, "close", close_and_serve)
    first.stop()
    assert ask(path, "/second")[0] == 200


def test_a_question_without_a_path_is_a_bad_one(serve, path, caplog):
    serve()
    status, answer = ask(path, "x://[x")
    assert (status, answer["error"][:8]) == (400, "no path:")
    assert not caplog.records


def test_what_is_no_socket_is_left_alone_and_reported_once(serve, path, caplog):
    path.parent.mkdir()
    path.write_text("precious")
    serve(retry=0.01)
    time.sleep(0.1)
    assert path.read_text() == "precious"
    assert [each.message for each in caplog.records] == [
        "cannot answer queries: the path exists and is not a socket: remove it; retrying"
    ]
    caplog.set_level(logging.INFO)
    path.unlink()
    wait_until(lambda: "answering queries" in caplog.text)


def test_a_directory_that_cannot_be_made_is_reported_and_nothing_else_happens(
    http_server, tmp_path, caplog
):
    (tmp_path / "file").write_text("")
    server = QueryServer(http_server, tmp_path / "file" / "agent.sock", {})
    server.start()
    server.stop()
    assert "cannot answer queries: File exists" in caplog.text

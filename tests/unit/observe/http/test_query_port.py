# SPDX-License-Identifier: Apache-2.0
"""Questions of the relay over mutual TLS."""

import json
import logging
import socket
from contextlib import ExitStack, closing

import pytest

from ebpflb.errors import MapError
from ebpflb.observe.http.query_port import QueryPort
from ebpflb.observe.http.query_socket import MOST_QUERIES, HttpQueryError, json_reply
from ebpflb.web.answers import Answer, StreamedAnswer
from ebpflb.web.tls import Certificates, mutual_server
from ebpflb.words.observe import RELAY
from tests.ports import free_port
from tests.unit.mutual import ask, connected
from tests.unit.web.served import REQUEST, endless, is_dropped, wait_until

OTHERS = ("agent.observe.ebpflb.io", "Relay.observe.ebpflb.io", "relay.observe.ebpflb.io.example")


def echo(query):
    return json_reply([*query.path, dict(query.parameters)])


def refuse(_):
    raise HttpQueryError("no such thing")


def fail(_):
    raise MapError("lb_names", "lookup", 5)


@pytest.fixture
def port(http_server, parties):
    routes = {
        "/v1/echo": echo,
        "/v1/refuse": refuse,
        "/v1/fail": fail,
        "/v1/large": lambda _: Answer(bytes(8 << 20)),
        "/v1/lines": lambda _: StreamedAnswer(iter([b"one\n", b"", b"two\n"])),
        "/v1/endless": lambda _: StreamedAnswer(endless()),
    }
    encryption = Certificates(parties.agent, mutual_server).context
    made = QueryPort(http_server, ("127.0.0.1", 0), routes, encryption)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def relay(parties):
    return parties.relay


def test_the_relay_is_answered_what_root_is(port, relay):
    answer = ask(port.number, relay, "/v1/echo/a%2Fb?x=1")
    assert (answer.status, json.loads(answer.body)) == (200, ["a/b", {"x": "1"}])
    assert ask(port.number, relay, "/v1/lines").body == b"one\ntwo\n"
    assert ask(port.number, relay, "/v1/large").body == bytes(8 << 20)


@pytest.mark.parametrize("name", [*OTHERS, ""])
def test_no_other_holder_of_a_certificate_may_ask(port, parties, tmp_path, name):
    other = parties.authority.issue(tmp_path, *filter(None, [name]))
    answer = ask(port.number, other, "/v1/echo")
    assert (answer.status, json.loads(answer.body)) == (
        403,
        {"error": f"only {RELAY} may ask, and not {name!r}"},
    )
    assert answer.headers["Content-Type"] == "application/json"


def test_a_second_name_makes_nobody_the_relay(port, parties, tmp_path):
    for number, names in enumerate([(RELAY, "other"), ("other", RELAY)]):
        both = parties.authority.issue(tmp_path / str(number), *names)
        assert ask(port.number, both, "/v1/echo").status == 403


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v1/other", 404, "nothing at /v1/other: there is /v1/echo, "),
        ("/v1/echo?x=1&x=2", 400, "once"),
        ("/v1/refuse", 400, "no such thing"),
        ("/v1/fail", 500, "map lb_names: lookup failed"),
    ],
)
def test_what_cannot_be_answered_gives_one_line(port, relay, target, status, text):
    answer = ask(port.number, relay, target)
    assert (answer.status, answer.body.count(b"\n")) == (status, 1)
    assert text in json.loads(answer.body)["error"]


@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE"])
def test_the_relay_only_asks(port, relay, method):
    assert ask(port.number, relay, "/v1/echo", method).status == 405


def test_no_more_than_so_many_are_answered_at_once(port, relay):
    with ExitStack() as stack:
        for _ in range(MOST_QUERIES):
            client = stack.enter_context(closing(connected(port.number, relay)))
            client.sendall(b"GET /v1/endless HTTP/1.1\r\nHost: agent\r\n\r\n")
        wait_until(lambda: port.clients.answered == MOST_QUERIES)
        answer = ask(port.number, relay, "/v1/echo")
        assert answer.status == 503
        assert json.loads(answer.body)["error"].startswith("16 others are being answered")
    wait_until(lambda: ask(port.number, relay, "/v1/echo").status == 200)


def test_no_more_than_48_clients_stay_connected(port, relay):
    with ExitStack() as stack:
        address = ("127.0.0.1", port.number)
        first, *_ = (stack.enter_context(socket.create_connection(address, 60)) for _ in range(49))
        assert is_dropped(first)
        assert len(port.clients) == 48
        assert ask(port.number, relay, "/v1/echo").status == 200


def test_without_tls_nobody_is_answered(port):
    with socket.create_connection(("127.0.0.1", port.number), 60) as client:
        client.sendall(REQUEST)
        assert is_dropped(client)


def test_a_port_that_is_taken_is_tried_again(http_server, parties, relay, caplog):
    caplog.set_level(logging.INFO)
    number = free_port()
    address, routes = ("127.0.0.1", number), {"/v1/echo": echo}
    encryption = Certificates(parties.agent, mutual_server).context
    port = QueryPort(http_server, address, routes, encryption, retry=0.01)
    with socket.create_server(("127.0.0.1", number)):
        port.start()
    wait_until(lambda: "listening" in caplog.messages)
    assert ask(number, relay, "/v1/echo").status == 200
    port.stop()
    assert caplog.messages == ["cannot listen: Address already in use; retrying", "listening"]

# SPDX-License-Identifier: Apache-2.0
"""Agents are asked over real TLS: at their own port, and at one that behaves badly."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from http import HTTPStatus

import msgspec
import pytest

from ebpflb.dataplane.explain.question import (
    ClientAnswer,
    Explanation,
    KernelAnswer,
    ModelAnswer,
    TargetAnswer,
)
from ebpflb.errors import ClusterError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentQuestion
from ebpflb.observe.http.query_port import QueryPort
from ebpflb.observe.http.query_socket import HttpQueryError, json_reply
from ebpflb.relay import agents, exchange
from ebpflb.relay.agents import TlsAgents
from ebpflb.web.answers import StreamedAnswer
from ebpflb.web.server import HttpServer
from ebpflb.web.tls import Certificates, mutual_client, mutual_server
from ebpflb.words.observe import AGENT, RELAY
from tests.certificates import Authority

NODE = RemoteAgent("a", "kube-system", "ebpflb-a", True, "", "127.0.0.1")
FLOWS = AgentQuestion("flows", {"limit": "5", "namespace": "", "follow": True, "none": False})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Certificates by who has them."""
    base = tmp_path_factory.mktemp("certificates")
    ours, other = Authority(base / "ours", "ebpflb"), Authority(base / "other", "other")
    return {
        "agent": ours.issue(base / "agent", "agent", dns=AGENT),
        "relay": ours.issue(base / "relay", RELAY),
        "other agent": other.issue(base / "other-agent", "agent", dns=AGENT),
        "other relay": other.issue(base / "other-relay", RELAY),
        "misnamed agent": ours.issue(base / "misnamed", "agent", dns="agent.example.com"),
        "expired agent": ours.issue(base / "expired", "agent", dns=AGENT, end=-timedelta(hours=1)),
        "misnamed relay": ours.issue(base / "misnamed-relay", "agent"),
    }


class Port:
    """An agent's own port. asked: the queries."""

    def __init__(self, folder):
        self.asked = []
        self.reply = lambda _: json_reply({"well": True})
        self._server = HttpServer()
        routes = {f"/v1/{each}": self._answer for each in ("flows", "explain")}
        encryption = Certificates(folder, mutual_server).context
        self._port = QueryPort(self._server, ("127.0.0.1", 0), routes, encryption)
        self._port.start(hard_fail=True)
        self.number = self._port.number

    def _answer(self, query):
        self.asked.append(query)
        return self.reply(query)

    def close(self):
        self._port.stop()
        self._server.stop()


@pytest.fixture
def port(folders):
    found = Port(folders["agent"])
    yield found
    found.close()


def asking(port, folder, seconds=20.0, addresses=()):
    encryption = Certificates(folder, mutual_client).context
    return TlsAgents(port, encryption, lambda _: list(addresses), seconds)


def answered(port, folders, relay="relay", **more):
    return asking(port, folders[relay], **more).answer(NODE, FLOWS)


def test_an_agent_answers(port, folders):
    found = answered(port.number, folders)
    assert (found.status, json.loads(found.stdout), found.error) == (0, {"well": True}, "")
    (query,) = port.asked
    assert query.parameters == {"limit": "5", "follow": "true"}


def test_a_stream_is_read_to_its_end(port, folders):
    pieces = [b'{"seq": %d}\n' % each for each in range(1500)]
    port.reply = lambda _: StreamedAnswer(iter(pieces))
    assert answered(port.number, folders).stdout == b"".join(pieces).decode()


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ("other agent", "self-signed certificate"),
        ("misnamed agent", "Hostname mismatch"),
        ("expired agent", "certificate has expired"),
    ],
)
def test_an_agent_proves_who_it_is(folders, agent, why):
    port = Port(folders[agent])
    try:
        found = answered(port.number, folders)
    finally:
        port.close()
    assert found.status is None
    assert found.error.startswith(f"has a certificate that is not trusted: {why}")
    assert port.asked == []


def test_an_agent_refuses_another_authority(port, folders):
    found = asking(port.number, _mixed(folders)).answer(NODE, FLOWS)
    assert (found.status, port.asked) == (None, [])
    # What it sees of the refusal depends on what it has sent by then.
    assert "refuses the relay's certificate" in found.error


def _mixed(folders):
    """It trusts the agents, who do not trust it."""
    found = folders["other relay"]
    (found / "ca.crt").write_text((folders["agent"] / "ca.crt").read_text())
    return found


def test_an_agent_answers_nobody_but_the_relay(port, folders):
    found = answered(port.number, folders, "misnamed relay")
    assert (found.status, port.asked) == (1, [])
    assert found.stderr == f"only {RELAY} may ask, and not 'agent'"


@pytest.mark.parametrize("status", [400, 404, 503])
def test_an_agent_says_why_it_does_not_answer(port, folders, status):
    def refuse(_):
        raise HttpQueryError("unknown pod 'a/b'", HTTPStatus(status))

    port.reply = refuse
    found = answered(port.number, folders)
    assert (found.status, found.stdout, found.stderr) == (1, "", "unknown pod 'a/b'")


def test_an_agent_of_another_version_may_not_know_a_question(port, folders):
    found = asking(port.number, folders["relay"]).answer(NODE, AgentQuestion("top"))
    assert found.stderr == "nothing at /v1/top: there is /v1/flows, /v1/explain"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"5", b"\xff", b'{"other": 1}'])
def test_a_refusal_without_a_reason_has_its_status(port, folders, body):
    port.reply = lambda _: json_reply(0, HTTPStatus.BAD_GATEWAY)._replace(body=body)
    assert answered(port.number, folders).stderr == "the agent answers 502"


def test_nonsense_is_passed_on_as_text(port, folders):
    port.reply = lambda _: json_reply(0)._replace(body=b"\xff\x00")
    assert answered(port.number, folders).stdout == "\ufffd\x00"


def test_an_answer_has_a_limit(port, folders, monkeypatch):
    monkeypatch.setattr(agents, "_MOST_BYTES", 1 << 20)
    port.reply = lambda _: json_reply(0)._replace(body=bytes(1 << 20))
    assert answered(port.number, folders).status == 0
    port.reply = lambda _: json_reply(0)._replace(body=bytes((1 << 20) + 1))
    assert answered(port.number, folders).error == "answers with more than 1 MiB"


def test_a_node_without_an_agent_is_not_asked(folders):
    agent = RemoteAgent("c", "", "", False, "")
    found = asking(1, folders["relay"]).answer(agent, FLOWS)
    assert (found.status, found.error) == (None, NO_AGENT)


def test_an_agent_that_does_not_listen_cannot_be_reached(folders):
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    assert answered(number, folders).error == "cannot be reached: Connection refused"


def test_what_speaks_no_tls_is_no_agent(folders):
    def answer():
        accepted, _ = listening.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            accepted.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        found = answered(listening.getsockname()[1], folders)
        thread.join()
    assert found.error.startswith("refuses the relay's certificate, or speaks no TLS: WRONG_")


def test_without_certificates_none_is_asked(port, tmp_path):
    found = asking(port.number, tmp_path).answer(NODE, FLOWS)
    assert found.error == "cannot be reached: No such file or directory"


@contextmanager
def misbehaving(folders, talk):
    """A port where `talk` gets one connection, after the request."""
    context = mutual_server(folders["agent"])

    def serve():
        with suppress(OSError):
            accepted, _ = listening.accept()
            with context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(1 << 16)
                talk(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "begin",
    [b"", HEAD, HEAD + b"X: ", HEAD + b"Content-Length: 99999\r\n\r\n"]
    + [HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + more for more in (b"", b"fffff\r\n")],
)
def test_an_answer_that_trickles_in_has_a_deadline(folders, begin):
    ended = threading.Event()

    def trickle(connection):
        connection.sendall(begin)
        while not ended.wait(0.02):
            connection.sendall(b"1")

    with misbehaving(folders, trickle) as port:
        started = time.monotonic()
        found = answered(port, folders, seconds=0.5)
        ended.set()
    assert found.error == "does not answer in time"
    assert time.monotonic() - started < 5


def test_an_agent_that_says_nothing_has_a_deadline(folders):
    ended = threading.Event()
    with misbehaving(folders, lambda _: ended.wait(60)) as port:
        started = time.monotonic()
        found = answered(port, folders, seconds=0.2)
        ended.set()
    assert found.error == "does not answer in time"
    assert time.monotonic() - started < 3


def test_an_answer_may_take_longer_than_a_connection(folders, monkeypatch):
    monkeypatch.setattr(exchange, "_CONNECT_SECONDS", 0.5)
    never = threading.Event()

    def answer(connection):
        never.wait(1)
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

    with misbehaving(folders, answer) as port:
        assert answered(port, folders).stdout == "{}"


def test_a_deadline_that_is_over_is_one(port, folders):
    assert answered(port.number, folders, seconds=-1.0).error == "does not answer in time"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "ends the connection without an answer: maybe it refuses the relay's certificate"),
        (HEAD + b"Content-Length: 99\r\n\r\n{}\n", "breaks off in the middle of its answer"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}\n", "breaks off in the middle"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n", "breaks off in the middle"),
        (b"nonsense\r\n\r\n", "nonsense"),
    ],
)
def test_an_answer_that_breaks_off_is_none(folders, text, why):
    with misbehaving(folders, lambda connection: connection.sendall(text)) as port:
        found = answered(port, folders)
    assert found.status is None
    assert found.error.startswith(why)


EXPLANATION = Explanation(
    "",
    ClientAnswer("a pod of this node", "10.244.1.5", 0, "veth1", True),
    TargetAnswer("10.96.0.10", 80, "TCP", "shop/web", "http", "ClusterIP"),
    "refused",
    KernelAnswer("refused", "socket hook", "", "", "", "", "", [], None, [], [], []),
    ModelAnswer("", None, "refused", [], ""),
    True,
    [],
)


def test_an_explanation_end_to_end(port, folders):
    port.reply = lambda _: json_reply(msgspec.to_builtins(EXPLANATION))
    asked = asking(port.number, folders["relay"], addresses=["10.244.1.5", "fd00::5"])
    found = asked.answer(NODE, AgentQuestion("explain", {}, ("shop/curl:40", "shop/web:http/udp")))
    assert found.status == 0, found
    document = json.loads(found.stdout)
    assert (document["outcome"], document["kernel"]["from"]) == ("fails", "")
    (query,) = port.asked
    given = {"from": "10.244.1.5,fd00::5", "to": "shop/web", "port": "http", "source_port": "40"}
    assert query.parameters == {**given, "is_pod": "True", "protocol": "UDP"}


def test_an_explanation_from_an_address_needs_no_pod(port, folders):
    port.reply = lambda _: json_reply(msgspec.to_builtins(EXPLANATION))
    asked = asking(port.number, folders["relay"])
    assert (
        asked.answer(NODE, AgentQuestion("explain", {}, ("fd00::5", "10.96.0.10:80"))).status == 0
    )
    assert port.asked[0].parameters["from"] == "fd00::5"
    assert asked.answer(NODE, AgentQuestion("explain", {}, ("host", "10.96.0.10:80"))).status == 0
    assert "from" not in port.asked[1].parameters


def test_an_explanation_may_be_refused_or_odd(port, folders):
    question = AgentQuestion("explain", {}, ("host", "shop/web"))
    port.reply = lambda _: json_reply({"error": "no Service shop/web"}, HTTPStatus(422))
    found = asking(port.number, folders["relay"]).answer(NODE, question)
    assert (found.status, found.stderr) == (1, "no Service shop/web")
    port.reply = lambda _: json_reply({})
    found = asking(port.number, folders["relay"]).answer(NODE, question)
    assert found.status is None
    assert found.error.startswith("an answer that this version cannot read (Object missing")


def test_a_pod_without_an_address_cannot_be_explained(folders):
    def addresses_of(_):
        raise ClusterError("pod shop/curl has no address yet")

    asked = TlsAgents(1, Certificates(folders["relay"], mutual_client).context, addresses_of, 1.0)
    found = asked.answer(NODE, AgentQuestion("explain", {}, ("shop/curl", "shop/web")))
    assert found.error == "pod shop/curl has no address yet"

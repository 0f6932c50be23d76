# SPDX-License-Identifier: Apache-2.0
"""The server over mutual TLS: whom it lets in, and clients that are slow, many, or gone."""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial

import pytest

from ebpflb.web import connection as limits
from ebpflb.web import server as server_limits
from ebpflb.web.answers import Answer, Request, StreamedAnswer
from ebpflb.web.server import Clients
from ebpflb.web.tls import Certificates, mutual_client, mutual_server
from ebpflb.words.observe import AGENT, RELAY
from tests.certificates import Authority, self_signed
from tests.unit.mutual import Mounted, ask, connected
from tests.unit.web.served import (
    BROKEN_OFF,
    HALF,
    LARGE,
    OK,
    REQUEST,
    SECONDS,
    Served,
    endless,
    is_dropped,
    read,
    read_body,
    wait_until,
)

HOUR = timedelta(hours=1)


@pytest.fixture
def serve_tls(serve, parties):
    return partial(serve, encryption=Certificates(parties.agent, mutual_server).context)


@pytest.fixture
def served(serve_tls):
    return serve_tls()


def is_refused(port, who, **options) -> bool:
    """Whether a client gets no answer; it may learn that only after its request."""
    try:
        ask(port, who, **options)
    except (OSError, http.client.HTTPException):
        return True
    return False


def test_a_client_with_a_certificate_is_known_by_its_name(served, parties):
    assert ask(served.port, parties.relay)[:2] == (200, b"ok")
    (request,) = served.requests
    assert (request.subject, request.target) == (RELAY, "/")


def test_without_tls_a_client_has_no_name(serve):
    served = serve()
    assert served.status() == 200
    assert served.requests[0].subject == ""


@pytest.fixture
def strangers(tmp_path, parties):
    """Directories of certificates with which nobody may ask."""
    other = Authority(tmp_path / "other").issue(tmp_path / "foreign", RELAY)
    # It trusts the agent, as the others do.
    (other / "ca.crt").write_bytes((parties.relay / "ca.crt").read_bytes())
    alone = self_signed(tmp_path / "alone", RELAY)
    (alone / "ca.crt").write_bytes((parties.relay / "ca.crt").read_bytes())
    issue = parties.authority.issue
    return {
        "of another authority": other,
        "self-signed": alone,
        "expired": issue(tmp_path / "expired", RELAY, end=-HOUR),
        "not yet valid": issue(tmp_path / "early", RELAY, begin=HOUR),
    }


@pytest.mark.parametrize("why", ["of another authority", "self-signed", "expired", "not yet valid"])
def test_a_wrong_certificate_is_refused(served, strangers, why, caplog):
    assert is_refused(served.port, strangers[why])
    assert not served.requests
    assert not caplog.records


def test_without_a_certificate_a_client_is_refused(served, parties):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(parties.relay / "ca.crt")
    assert is_refused(served.port, context)
    assert not served.requests


def test_a_client_finds_out_that_it_speaks_with_somebody_else(serve, parties, strangers):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        connected(serve_by(serve, parties.agent).port, parties.relay, "other.observe.ebpflb.io")
    for of_server in (*strangers.values(), parties.relay):
        with pytest.raises(ssl.SSLCertVerificationError):
            connected(serve_by(serve, of_server).port, parties.relay)


def serve_by(serve, directory):
    return serve(encryption=Certificates(directory, mutual_server).context)


def test_an_older_tls_is_refused(served, parties):
    context = mutual_client(parties.relay)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert is_refused(served.port, context)
    assert ask(served.port, parties.relay).status == 200


@pytest.mark.parametrize("sent", [REQUEST, b"\x16\x03\x01\x02\x00nonsense", b"\0" * 100_000])
def test_what_is_not_tls_gets_no_answer(serve_tls, parties, sent, caplog, monkeypatch):
    monkeypatch.setattr(server_limits, "_HANDSHAKE_SECONDS", 1.0)
    served = serve_tls()
    assert is_dropped(served.connect(sent))
    assert ask(served.port, parties.relay).status == 200
    assert not caplog.records


def test_a_client_that_says_nothing_is_dropped_at_the_deadline_of_the_handshake(
    serve_tls, monkeypatch
):
    monkeypatch.setattr(server_limits, "_HANDSHAKE_SECONDS", 0.1)
    served = serve_tls()
    assert is_dropped(served.connect())
    wait_until(lambda: not len(served.clients))


def test_a_client_that_sends_half_a_request_is_dropped_at_its_deadline(
    serve_tls, parties, monkeypatch
):
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 0.1)
    served = serve_tls()
    with connected(served.port, parties.relay) as client:
        client.sendall(HALF)
        assert is_dropped(client)


def test_a_client_that_leaves_within_the_handshake_leaves_nothing(served, parties, caplog):
    hello, nothing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = mutual_client(parties.relay).wrap_bio(nothing, hello, server_hostname=AGENT)
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    client = served.connect(hello.read())
    assert client.recv(1)
    client.close()
    wait_until(lambda: not len(served.clients))
    assert not caplog.records


def test_without_certificates_clients_are_dropped_until_they_are_there(
    serve, parties, tmp_path, caplog
):
    served = serve_by(serve, tmp_path)
    for _ in range(2):
        assert is_refused(served.port, parties.relay)
    assert len(caplog.records) == 1
    Mounted(tmp_path).put(parties.agent)
    assert ask(served.port, parties.relay).status == 200


def serial_number(port, who) -> str:
    with connected(port, who) as client:
        return str((client.getpeercert() or {})["serialNumber"])


def test_new_connections_get_the_certificate_that_is_there_now(serve, parties, tmp_path):
    mounted = Mounted(tmp_path)
    mounted.put(parties.agent)
    served = serve_by(serve, tmp_path)
    with connected(served.port, parties.relay) as early:
        first = serial_number(served.port, parties.relay)
        mounted.put(parties.authority.issue(tmp_path / "next", AGENT, dns=AGENT))
        second, third = (serial_number(served.port, parties.relay) for _ in range(2))
        assert first != second == third
        early.sendall(REQUEST)
        assert read(early).startswith(b"HTTP/1.1 200 ")


def test_after_the_authority_was_replaced_its_clients_are_refused(serve, parties, tmp_path):
    mounted = Mounted(tmp_path)
    mounted.put(parties.agent)
    served = serve_by(serve, tmp_path)
    assert ask(served.port, parties.relay).status == 200
    other = Authority(tmp_path / "ca")
    mounted.put(other.issue(tmp_path / "next", AGENT, dns=AGENT))
    relay = other.issue(tmp_path / "relay", RELAY)
    assert ask(served.port, relay).status == 200
    assert is_refused(served.port, parties.relay)


def test_with_files_that_do_not_fit_together_the_old_certificate_serves(
    serve, parties, tmp_path, caplog
):
    mounted = Mounted(tmp_path)
    mounted.put(parties.agent)
    served = serve_by(serve, tmp_path)
    first = serial_number(served.port, parties.relay)
    unfit = parties.authority.issue(tmp_path / "unfit", AGENT, dns=AGENT)
    (unfit / "tls.key").write_bytes((parties.relay / "tls.key").read_bytes())
    mounted.put(unfit)
    assert [serial_number(served.port, parties.relay) for _ in range(3)] == [first] * 3
    assert len(caplog.records) == 1


def test_a_large_answer_arrives_whole(serve_tls, parties):
    served = serve_tls(LARGE)
    assert ask(served.port, parties.relay).body == LARGE.body


def test_the_end_of_an_answer_is_told(serve_tls, parties, monkeypatch):
    """Without the end of TLS, read() would raise SSLError."""
    monkeypatch.setattr(limits, "_CLOSING_SECONDS", 0.1)
    with connected(serve_tls(LARGE).port, parties.relay) as client:
        client.sendall(REQUEST)
        assert len(read(client)) > len(LARGE.body)


def test_a_head_has_no_body(serve_tls, parties):
    answer = ask(serve_tls(LARGE).port, parties.relay, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(LARGE.body))


@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 16, 1 << 19])
@pytest.mark.parametrize("answer", [OK, LARGE], ids=["a short one", "a long one"])
def test_an_answer_arrives_whole_though_the_client_sends_more(serve_tls, parties, answer, size):
    served = serve_tls(answer)
    with connected(served.port, parties.relay) as client:
        client.sendall(REQUEST)
        wait_until(lambda: served.requests)
        client.sendall(bytes(size))
        assert read_body(client) == answer.body


def test_what_is_sent_with_the_request_does_no_harm(serve_tls, parties):
    with connected(serve_tls(LARGE).port, parties.relay) as client:
        client.sendall(REQUEST + REQUEST * 100)
        assert read_body(client) == LARGE.body


def test_a_client_that_reads_slowly_gets_all_of_a_long_stream(serve_tls, parties):
    sent = [bytes([number]) * 10_000 for number in range(200)]
    served = serve_tls(StreamedAnswer(iter(sent)))
    with connected(served.port, parties.relay, buffer=4096) as client:
        client.sendall(REQUEST)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert b"".join(iter(partial(answer.read, 1000), b"")) == b"".join(sent)


def test_for_a_client_that_does_not_read_little_is_made(serve_tls, parties):
    made = []

    def pieces() -> Iterator[bytes]:
        while True:
            made.append(1)
            yield bytes(1 << 14)

    served = serve_tls(StreamedAnswer(pieces()))
    with connected(served.port, parties.relay, buffer=4096) as client:
        client.sendall(REQUEST)
        wait_until(lambda: is_still(made))
        assert ask_other(served, parties) == b"ok"
        assert len(made) < 1000


def is_still(made: list[int]) -> bool:
    before = len(made)
    time.sleep(0.2)
    return before == len(made) > 0


def ask_other(served, parties) -> bytes:
    served.answer = OK
    return ask(served.port, parties.relay).body


def test_a_client_that_does_not_read_its_answer_is_dropped_at_its_deadline(
    serve_tls, parties, monkeypatch
):
    monkeypatch.setattr(limits, "_RESPONSE_SECONDS", 0.1)
    served = serve_tls(LARGE)
    with connected(served.port, parties.relay, buffer=4096) as client:
        client.sendall(REQUEST)
        wait_until(lambda: served.requests and not len(served.clients))
        with pytest.raises((*BROKEN_OFF, ssl.SSLError)):
            read_body(client)


def test_a_client_that_does_not_close_is_dropped_at_its_deadline(serve_tls, parties, monkeypatch):
    monkeypatch.setattr(limits, "_REQUEST_SECONDS", 0.5)
    served = serve_tls()
    with connected(served.port, parties.relay) as client:
        client.sendall(REQUEST)
        assert read_body(client) == b"ok"
        wait_until(lambda: not len(served.clients))


def read_until(client: ssl.SSLSocket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += client.recv(4096)
    return found


@pytest.mark.parametrize("piece", [b"", bytes(1 << 14)], ids=["quiet", "busy"])
@pytest.mark.parametrize("is_polite", [True, False])
def test_a_stream_ends_with_its_client(serve_tls, parties, piece, is_polite):
    ended = threading.Event()

    def pieces() -> Iterator[bytes]:
        try:
            yield b"first\n"
            while True:
                time.sleep(0.01)
                yield piece
        finally:
            ended.set()

    served = serve_tls(StreamedAnswer(pieces()))
    with connected(served.port, parties.relay, buffer=4096) as client:
        client.sendall(REQUEST)
        if is_polite and not piece:
            # Nothing is left unread, which would be told as an error.
            assert read_until(client, b"first\n\r\n")
        else:
            assert client.recv(1)
        served.answer = OK
        assert not ended.wait(0.1)
        if is_polite:
            with suppress(OSError):
                client.unwrap()
    assert ended.wait(SECONDS)
    wait_until(lambda: not len(served.clients))


def test_of_too_many_clients_the_oldest_in_a_handshake_goes(serve_tls, parties, caplog):
    served = serve_tls(StreamedAnswer(endless()), most=3)
    with ExitStack() as stack:
        answered = stack.enter_context(connected(served.port, parties.relay))
        answered.sendall(REQUEST)
        wait_until(lambda: served.clients.answered == 1)
        oldest, *others = (stack.enter_context(served.connect()) for _ in range(3))
        assert is_dropped(oldest)
        assert (len(served.clients), served.clients.answered) == (3, 1)
        for each in others:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
    assert not caplog.records


def test_if_all_are_being_answered_the_oldest_goes(serve_tls, parties):
    served = serve_tls(StreamedAnswer(endless()), most=1)
    with connected(served.port, parties.relay) as oldest:
        oldest.sendall(REQUEST)
        wait_until(lambda: served.clients.answered == 1)
        served.connect().close()
        with pytest.raises((*BROKEN_OFF, ssl.SSLError)):
            read_body(oldest)


def test_closing_the_port_ends_its_clients(http_server, parties):
    encryption = Certificates(parties.agent, mutual_server).context
    other = Served(http_server, StreamedAnswer(endless()), encryption=encryption)
    with connected(other.port, parties.relay) as client, other.connect() as silent:
        client.sendall(REQUEST)
        wait_until(lambda: other.clients.answered == 1)
        http_server.close(other.socket)
        with pytest.raises((*BROKEN_OFF, ssl.SSLError)):
            read_body(client)
        assert is_dropped(silent)


def test_a_bug_in_an_answer_is_logged_and_ends_nothing(serve_tls, parties, caplog):
    def bug() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    served = serve_tls(StreamedAnswer(bug()))
    assert is_refused(served.port, parties.relay)
    wait_until(lambda: "an HTTP request failed" in caplog.text)
    served.answer = Answer(b"ok")
    assert ask(served.port, parties.relay).body == b"ok"


def test_a_client_may_be_gone_before_it_is_answered(http_server, parties, caplog):
    """The server's thread sends before it can have noticed that."""
    clients, listening = Clients(), socket.create_server(("127.0.0.1", 0))
    gone = threading.Event()

    async def respond(_: Request) -> Answer:
        client.close()
        gone.set()
        return LARGE

    encryption = Certificates(parties.agent, mutual_server).context
    http_server.listen(listening, respond, clients, encryption)
    client = connected(listening.getsockname()[1], parties.relay)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sendall(REQUEST)
    assert gone.wait(SECONDS)
    wait_until(lambda: not len(clients))
    http_server.close(listening)
    assert not caplog.records

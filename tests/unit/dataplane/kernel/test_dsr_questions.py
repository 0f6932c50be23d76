# SPDX-License-Identifier: Apache-2.0
"""DsrSockets on the loopback: probes received by real sockets, and replies from any sender."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ebpflb.dataplane.kernel.dsr_questions import DsrSockets
from ebpflb.model.address import Address, Family, parse_address

OWN = {Family.IPV4: parse_address("127.0.0.1"), Family.IPV6: parse_address("::1")}
PEER = {Family.IPV4: "127.0.0.2", Family.IPV6: "::1"}
NONCE, KEY = bytes(range(16)), bytes(range(8))
QUESTION, ANSWER = (1, 0), (0, 1)


class Asked:
    """A socket in place of the program of another node, and the questions for it."""

    def __init__(self, family: Family) -> None:
        self.family = family
        kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self.node = socket.socket(kind, socket.SOCK_DGRAM)
        self.node.bind((PEER[family], 0))
        self.node.settimeout(60)
        self.address = parse_address(PEER[family])
        self.asking = DsrSockets(self.node.getsockname()[1])

    def ask(self, own: Address | None = None, nonce: bytes = NONCE) -> str:
        return self.asking.ask(own or OWN[self.family], self.address, nonce, KEY)

    def get(self) -> tuple[bytes, tuple[str, int]]:
        packet, source = self.node.recvfrom(100)
        return packet, source[:2]

    def answers(self) -> list[tuple[Address, bytes]]:
        return list(self.asking.answers())


@contextmanager
def asked_in(family: Family) -> Iterator[Asked]:
    made = Asked(family)
    with made.node:
        yield made
    made.asking.close()


@pytest.fixture(params=Family, ids=["IPv4", "IPv6"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    with asked_in(request.param) as made:
        yield made


@pytest.fixture
def asked4() -> Iterator[Asked]:
    with asked_in(Family.IPV4) as made:
        yield made


def header(family: Family, words: tuple[int, int], nonce: bytes = NONCE) -> bytes:
    protocol = b"\x08\x00" if family is Family.IPV4 else b"\x86\xdd"
    start = b"\x08\xc0" + protocol + bytes(4) + b"\xff\x6c\x81\x07"
    return start + nonce + struct.pack("!2H", *words) + KEY


def test_a_question_is_the_header_of_a_tunnel_with_a_nonce(asked: Asked):
    assert asked.ask() == ""
    packet, (source, _) = asked.get()
    assert packet == header(asked.family, QUESTION)
    assert parse_address(source) == OWN[asked.family]


def test_an_answer_says_who_sent_it_and_which_nonce_it_has(asked: Asked):
    nonces = [bytes([number]) * 16 for number in range(3)]
    assert asked.answers() == []
    for nonce in nonces:
        asked.ask(nonce=nonce)
        _, source = asked.get()
        asked.node.sendto(header(asked.family, ANSWER, nonce), source)
    assert asked.answers() == [(asked.address, nonce) for nonce in nonces]
    assert asked.answers() == []


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(header(Family.IPV4, ANSWER)[:-1], id="too short"),
        pytest.param(header(Family.IPV4, ANSWER) + b"x", id="too long"),
        pytest.param(header(Family.IPV4, ANSWER) + bytes(60_000), id="far too long"),
        pytest.param(header(Family.IPV4, QUESTION), id="a question"),
        pytest.param(header(Family.IPV6, ANSWER), id="of the other family"),
        pytest.param(bytes(40), id="zeros"),
        pytest.param(b"\x08\x40" + header(Family.IPV4, ANSWER)[2:], id="no control packet"),
    ],
)
def test_what_is_no_answer_is_left_out(asked4: Asked, junk: bytes):
    asked4.ask()
    _, source = asked4.get()
    asked4.node.sendto(junk, source)
    asked4.node.sendto(header(asked4.family, ANSWER), source)
    assert asked4.answers() == [(asked4.address, NONCE)]


def test_answers_come_from_the_port_of_tunnels(asked: Asked):
    asked.ask()
    _, source = asked.get()
    with socket.socket(asked.node.family, socket.SOCK_DGRAM) as stranger:
        stranger.bind((PEER[asked.family], 0))
        stranger.sendto(header(asked.family, ANSWER), source)
    assert asked.answers() == []


def test_questions_come_from_the_nodes_present_address(asked4: Asked):
    asked4.ask()
    asked4.get()
    assert asked4.ask(own=parse_address("127.0.0.3")) == ""
    _, source = asked4.get()
    assert source[0] == "127.0.0.3"
    asked4.node.sendto(header(asked4.family, ANSWER), source)
    assert asked4.answers() == [(asked4.address, NONCE)]


@pytest.mark.parametrize("elsewhere", ["192.0.2.1", "2001:db8::1"])
def test_an_address_that_the_node_does_not_have_is_reported_until_it_has_it(elsewhere: str):
    own = parse_address(elsewhere)
    with asked_in(Family.IPV6 if ":" in elsewhere else Family.IPV4) as asked:
        assert asked.ask(own=own) == os.strerror(errno.EADDRNOTAVAIL)
        assert asked.ask() == ""


def test_a_family_without_an_address_is_reported(asked4: Asked):
    asked4.ask()
    why = asked4.asking.ask(None, asked4.address, NONCE)
    assert why == "this node has no IPv4 address"
    assert asked4.answers() == []
    assert asked4.ask() == ""


def test_what_cannot_be_sent_is_reported(asked4: Asked):
    broadcast = parse_address("255.255.255.255")
    assert asked4.asking.ask(OWN[Family.IPV4], broadcast, NONCE) == os.strerror(errno.EACCES)


def test_a_flood_is_taken_piece_by_piece(asked4: Asked):
    asked4.ask()
    _, source = asked4.get()
    for _ in range(130):
        asked4.node.sendto(header(asked4.family, ANSWER), source)
    assert [len(asked4.answers()) for _ in range(3)] == [128, 2, 0]

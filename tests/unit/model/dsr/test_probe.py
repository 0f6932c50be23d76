# SPDX-License-Identifier: Apache-2.0
"""DSR probes: when each node is probed, and what its replies mean."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from ebpflb.model.address import Address, Family
from ebpflb.model.dsr import Peer, Reachability
from ebpflb.model.dsr_probe import (
    ANSWER_SECONDS,
    MOST_AT_ONCE,
    MOST_PER_SECOND,
    PERIOD_SECONDS,
    STEP_SECONDS,
    UNANSWERED,
    PeerQuestion,
    Probes,
)
from tests.builders import address

B, C = Peer("node-b", Family.IPV4), Peer("node-c", Family.IPV6)
TARGETS = {B: address("192.0.2.2"), C: address("2001:db8::3")}
# The spread of the period.
SOONEST, LATEST = 0.75 * PERIOD_SECONDS, 1.25 * PERIOD_SECONDS + 1


def nonces() -> Iterator[bytes]:
    """Of which the first bytes are spread evenly."""
    return ((each * 97 % 256).to_bytes(1, "big") + each.to_bytes(15, "big") for each in count())


class Network:
    """Probes, and peers of which those in `answering` answer at once."""

    def __init__(self, targets: dict[Peer, Address]) -> None:
        self.probes = Probes(nonces().__next__)
        self.now = 1000.0
        self.answering = set(targets)
        self.asked: Counter[Peer] = Counter()
        self.at: list[float] = []
        self.probes.follow(targets, self.now)

    def step(self) -> list[PeerQuestion]:
        questions = self.probes.take_questions(self.now)
        for each in questions:
            self.asked[each.peer] += 1
            self.at.append(self.now)
            if each.peer in self.answering:
                self.probes.take_answer(each.address, each.nonce, self.now)
        return questions

    def run(self, seconds: float) -> None:
        """As the loop does it."""
        end = self.now + seconds
        while (wait := self.probes.wait(self.now)) is not None and self.now + wait <= end + 1e-6:
            self.now += wait
            self.step()
        self.now = end

    def found(self, peer: Peer) -> Reachability:
        return self.probes.found[peer]


@pytest.fixture
def network() -> Network:
    return Network(TARGETS)


def test_new_peers_are_asked_at_once_and_reachable_after_one_answer(network: Network):
    assert network.probes.take_change()
    assert set(network.probes.found.values()) == {Reachability.UNKNOWN}
    network.answering = {B}
    assert {(each.peer, each.address) for each in network.step()} == set(TARGETS.items())
    assert network.probes.take_change()
    assert network.found(B) is Reachability.REACHABLE
    assert network.found(C) is Reachability.UNKNOWN
    assert not network.probes.take_change()


def test_answers_are_looked_for_often_while_they_are_awaited(network: Network):
    network.run(5)
    wait = network.probes.wait(network.now)
    assert wait
    assert wait > STEP_SECONDS
    network.now += wait
    network.answering = set()
    assert network.step()
    assert network.probes.wait(network.now) == STEP_SECONDS


def test_nobody_to_ask_leaves_nothing_to_do(network: Network):
    network.probes.follow({}, network.now)
    assert network.probes.found == {}
    assert network.step() == []
    assert network.probes.wait(network.now) is None


def test_a_peer_that_never_answers_is_unreachable_after_three_questions(network: Network):
    network.answering = {B}
    network.run((UNANSWERED - 1) * ANSWER_SECONDS)
    assert network.found(C) is Reachability.UNKNOWN
    network.run(1.2 * ANSWER_SECONDS)
    assert network.found(C) is Reachability.UNREACHABLE
    assert network.asked[C] == UNANSWERED


def test_a_peer_that_answers_is_asked_now_and_then(network: Network):
    network.run(101)
    for peer in TARGETS:
        assert 101 / LATEST - 1 <= network.asked[peer] <= 101 / SOONEST + 1


def test_a_peer_that_falls_silent_is_unreachable_soon(network: Network):
    network.run(30)
    network.answering = {C}
    network.run(LATEST + (UNANSWERED + 0.5) * ANSWER_SECONDS)
    assert network.found(B) is Reachability.UNREACHABLE
    assert network.found(C) is Reachability.REACHABLE
    before = network.asked[B]
    network.run(101)
    assert 101 / (LATEST + 1) - 1 <= network.asked[B] - before <= 101 / SOONEST + 1


def test_a_lost_packet_or_two_do_not_matter(network: Network):
    network.run(30)
    network.probes.take_change()
    for _ in range(2):
        before = network.asked[B]
        network.answering = {C}
        while network.asked[B] < before + UNANSWERED - 1:
            network.run(STEP_SECONDS)
        network.answering = {B, C}
        while network.asked[B] < before + UNANSWERED:
            network.run(STEP_SECONDS)
    network.run(60)
    assert not network.probes.take_change()


def test_a_peer_that_comes_back_is_reachable_with_its_next_answer(network: Network):
    network.answering = {C}
    network.run(30)
    assert network.found(B) is Reachability.UNREACHABLE
    network.answering = {B, C}
    network.run(LATEST)
    assert network.found(B) is Reachability.REACHABLE


def test_answers_count_from_whom_was_asked_to_the_open_question(network: Network):
    network.answering = set()
    questions = {each.peer: each for each in network.step()}
    network.probes.take_answer(TARGETS[C], questions[B].nonce, network.now)
    network.probes.take_answer(TARGETS[B], bytes([255] * 16), network.now)
    network.now += 1.01 * ANSWER_SECONDS
    (again,) = (each for each in network.step() if each.peer == B)
    network.probes.take_answer(TARGETS[B], questions[B].nonce, network.now)
    assert network.found(B) is Reachability.UNKNOWN
    network.probes.take_answer(TARGETS[B], again.nonce, network.now)
    assert network.found(B) is Reachability.REACHABLE
    network.probes.take_answer(TARGETS[B], again.nonce, network.now)


def test_an_answer_that_comes_after_the_last_wait_does_not_count(network: Network):
    network.answering = set()
    last: dict[Peer, PeerQuestion] = {}
    while network.found(B) is Reachability.UNKNOWN:
        last |= {each.peer: each for each in network.step()}
        network.now += STEP_SECONDS
    network.probes.take_answer(TARGETS[B], last[B].nonce, network.now)
    assert network.found(B) is Reachability.UNREACHABLE


def test_a_peer_with_another_address_is_a_new_one(network: Network):
    network.run(5)
    network.probes.take_change()
    network.answering = set()
    network.probes.follow({**TARGETS, B: address("192.0.2.9")}, network.now)
    assert network.probes.take_change()
    assert network.found(B) is Reachability.UNKNOWN
    assert network.found(C) is Reachability.REACHABLE
    (question,) = network.step()
    assert (question.peer, question.address) == (B, address("192.0.2.9"))


def test_one_that_goes_with_an_open_question_is_forgotten(network: Network):
    network.answering = set()
    questions = network.step()
    network.probes.take_change()
    network.probes.follow({}, network.now)
    for each in questions:
        network.probes.take_answer(each.address, each.nonce, network.now)
    assert network.probes.take_change()
    network.run(100)
    assert network.probes.found == {}
    assert network.probes.wait(network.now) is None


def test_what_kept_a_question_from_being_sent_is_known(network: Network):
    network.answering = set()
    for _ in range(UNANSWERED):
        for each in network.step():
            network.probes.note_failure(each, "Network is unreachable")
        network.now += 1.01 * ANSWER_SECONDS
    network.step()
    assert network.found(B) is Reachability.UNREACHABLE
    assert network.probes.unreachable == dict.fromkeys(TARGETS, "Network is unreachable")
    network.run(LATEST + ANSWER_SECONDS)
    assert network.probes.unreachable == dict.fromkeys(TARGETS, "no answer")
    network.answering = {B, C}
    network.run(LATEST)
    assert network.probes.unreachable == {}


def test_many_peers_are_asked_step_by_step():
    many = {Peer(f"node-{i}", Family.IPV4): address(f"10.0.{i >> 8}.{i & 255}") for i in range(500)}
    network = Network(many)
    assert len(network.step()) == MOST_AT_ONCE
    network.run(1.5 * len(many) / MOST_AT_ONCE * STEP_SECONDS)
    assert set(network.probes.found.values()) == {Reachability.REACHABLE}
    assert set(network.asked.values()) == {1}


def test_there_are_a_hundred_questions_a_second_at_most_for_ever_so_many():
    many = {
        Peer(f"node-{i}", Family.IPV4): address(f"10.0.{i >> 8}.{i & 255}") for i in range(5000)
    }
    network = Network(many)
    network.run(200)
    network.at.clear()
    network.run(300)
    seconds = Counter(map(int, network.at))
    assert len(network.at) <= 1.02 * MOST_PER_SECOND * 300
    assert max(seconds.values()) < 3 * MOST_PER_SECOND


def test_the_loop_wakes_seldom_for_peers_that_answer():
    many = {Peer(f"node-{i}", Family.IPV4): address(f"10.0.0.{i}") for i in range(100)}
    network = Network(many)
    network.run(30)
    network.at.clear()
    network.run(100)
    assert len(set(network.at)) <= 105

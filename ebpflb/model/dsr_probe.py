# SPDX-License-Identifier: Apache-2.0
"""Which nodes take part in DSR's tunnels: when to ask each of them, and what their answers mean.

A peer that has answered stays reachable until it misses several questions in a row. A new peer is
asked at once, and its pods get no packets through a tunnel before it answers. Questions to known
peers are spread over time. Times are in seconds, by any clock that never goes back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.dsr import Peer, Reachability

# How long to wait for an answer before repeating a question.
ANSWER_SECONDS = 1.0
# A peer that misses this many questions in a row is unreachable.
UNANSWERED = 3
# Between questions to a peer that answers, or that has not answered for long.
PERIOD_SECONDS = 10.0
# Limit for such questions: with too many peers the period gets longer.
MOST_PER_SECOND = 100
# Questions per step, and how often to look for answers while waiting.
MOST_AT_ONCE = 50
STEP_SECONDS = 0.1


class PeerQuestion(NamedTuple):
    """nonce: 16 bytes that the answer must repeat. Its first byte also spreads the questions."""

    peer: Peer
    address: Address
    nonce: bytes


@dataclass(slots=True)
class _Asked:
    """due: when to ask, or to stop waiting for the answer to an open question.

    nonce: of the open question, if any. why: what prevented the last one from being sent.
    """

    address: Address
    due: float
    nonce: bytes | None = None
    unanswered: int = 0
    reachability: Reachability = Reachability.UNKNOWN
    why: str = ""


class Probes:
    """For one thread."""

    def __init__(self, make_nonce: Callable[[], bytes]) -> None:
        """`make_nonce`: returns 16 unpredictable bytes."""
        self._make_nonce = make_nonce
        self._asked: dict[Peer, _Asked] = {}
        # Entries whose time differs from the peer's `due` are stale.
        self._schedule: list[tuple[float, Peer]] = []
        # Nonce -> peer.
        self._open: dict[bytes, Peer] = {}
        self._has_changed = False

    @property
    def found(self) -> Mapping[Peer, Reachability]:
        """The reachability of all peers being asked."""
        return {peer: each.reachability for peer, each in self._asked.items()}

    @property
    def unreachable(self) -> Mapping[Peer, str]:
        """The peers that are unreachable, and why."""
        return {
            peer: each.why or "no answer"
            for peer, each in self._asked.items()
            if each.reachability is Reachability.UNREACHABLE
        }

    def follow(self, targets: Mapping[Peer, Address], now: float) -> None:
        """Ask these from now on, and no others. A peer whose address changes counts as new."""
        for peer in self._asked.keys() - targets.keys():
            self._forget(peer)
        for peer, address in targets.items():
            if peer in self._asked and self._asked[peer].address != address:
                self._forget(peer)
            if peer not in self._asked:
                self._asked[peer] = _Asked(address, now)
                heappush(self._schedule, (now, peer))
                self._has_changed = True

    def wait(self, now: float) -> float | None:
        """Seconds until there is something to do; None if there are no peers."""
        if not self._schedule:
            return None
        longest = STEP_SECONDS if self._open else PERIOD_SECONDS
        return min(max(self._schedule[0][0] - now, STEP_SECONDS), longest)

    def take_questions(self, now: float) -> list[PeerQuestion]:
        """The questions to send now; any others follow in the next step."""
        questions: list[PeerQuestion] = []
        while len(questions) < MOST_AT_ONCE and self._schedule and self._schedule[0][0] <= now:
            due, peer = heappop(self._schedule)
            asked = self._asked.get(peer)
            if asked and asked.due == due:
                questions += self._ask(peer, asked, now)
        return questions

    def note_failure(self, question: PeerQuestion, why: str) -> None:
        """Record that the question could not be sent."""
        self._asked[question.peer].why = why

    def take_answer(self, address: Address, nonce: bytes, now: float) -> None:
        """Take an answer from this address. It only counts for an open question."""
        peer = self._open.get(nonce)
        if peer is None or self._asked[peer].address != address:
            return
        asked = self._asked[peer]
        self._close(asked)
        asked.unanswered = 0
        self._place(asked, Reachability.REACHABLE)
        self._put_off(peer, asked, now, nonce)

    def take_change(self) -> bool:
        """Whether `found` has changed since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def _ask(self, peer: Peer, asked: _Asked, now: float) -> Iterator[PeerQuestion]:
        if nonce := asked.nonce:
            self._close(asked)
            asked.unanswered += 1
            if asked.unanswered >= UNANSWERED:
                self._place(asked, Reachability.UNREACHABLE)
                self._put_off(peer, asked, now, nonce)
                return
        asked.nonce, asked.why = self._make_nonce(), ""
        self._open[asked.nonce] = peer
        self._set_due(peer, asked, now + ANSWER_SECONDS)
        yield PeerQuestion(peer, asked.address, asked.nonce)

    def _close(self, asked: _Asked) -> None:
        if asked.nonce is not None:
            del self._open[asked.nonce]
            asked.nonce = None

    def _forget(self, peer: Peer) -> None:
        self._close(self._asked.pop(peer))
        self._has_changed = True

    def _place(self, asked: _Asked, reachability: Reachability) -> None:
        self._has_changed |= asked.reachability is not reachability
        asked.reachability = reachability

    def _put_off(self, peer: Peer, asked: _Asked, now: float, nonce: bytes) -> None:
        """Round up to a whole second, so that the loop wakes once for several of them."""
        period = max(PERIOD_SECONDS, len(self._asked) / MOST_PER_SECOND)
        self._set_due(peer, asked, ceil(now + period * (0.75 + nonce[0] / 512)))

    def _set_due(self, peer: Peer, asked: _Asked, due: float) -> None:
        asked.due = due
        heappush(self._schedule, (due, peer))

# SPDX-License-Identifier: Apache-2.0
"""TCP scripts: two ends that follow the protocol, a network that loses and repeats packets,
off-path forgers, and time that passes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ebpflb.model.address import Protocol
from tests.bpf.netfilter.script import Flaw, Script, Sent, Side, Silence, Step

# Neither they nor sums of two are near a timeout of ebpflb or netfilter.
SILENCES = (6, 20, 90, 200, 1000, 4000, 90000)
MOVES = 12
_ALL = 1 << 32
_FORGED_FLAGS = ("S", "SA", "A", "PA", "FA", "F", "R", "RA", "SF", "SR", "FSRPAU", "")
_FAR = (-(1 << 31), -(1 << 25), -100_000, -2000, 0, 1, 2000, 60_000, 100_000, 1 << 21, 1 << 30)


@dataclass
class _End:
    """next: its next sequence number; heard: what it has received from the other side."""

    next: int
    heard: int = 0
    has_ended: bool = False


@dataclass
class _Conversation:
    random: Random
    steps: list[Step] = field(default_factory=list)
    ends: dict[Side, _End] = field(default_factory=dict)
    said: list[Sent] = field(default_factory=list)
    is_open: bool = False
    scale: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Both ends choose new numbers, some of which wrap around soon."""
        self.ends = {side: _End(self._first()) for side in Side}
        self.said, self.is_open, self.scale = [], False, self.random.choice((0, 7))

    def _first(self) -> int:
        soon = self.random.random() < 0.5
        return self.random.randrange(_ALL - 2000 if soon else 0, _ALL)

    def say(self, side: Side, flags: str, size: int = 0, *, lost: str = "") -> None:
        """One end sends. `lost`: before or after the node."""
        me, other = self.ends[side], self.ends[side.other]
        ack = me.heard if "A" in flags else 0
        sent = Sent(side, flags, me.next, ack, size, self.scale, self._flaw(side))
        me.next = (me.next + size + ("S" in flags) + ("F" in flags)) % _ALL
        me.has_ended = me.has_ended or "F" in flags or "R" in flags
        if lost == "before":
            return
        self.steps.append(sent)
        self.said.append(sent)
        if sent.flaw:
            sent = sent._replace(flaw=Flaw.NONE)
            self.steps.append(sent)
        if lost != "behind":
            other.heard = me.next

    def _flaw(self, side: Side) -> Flaw:
        if self.random.random() < 0.96:
            return Flaw.NONE
        return Flaw.MAC if side is Side.CLIENT and self.random.random() < 0.5 else Flaw.CHECKSUM

    def repeat(self) -> None:
        """The network delivers a packet of this connection again."""
        if self.said:
            self.steps.append(self.random.choice(self.said)._replace(flaw=Flaw.NONE))

    def forge(self) -> None:
        """The forger knows the addresses and ports, and perhaps a sequence number."""
        side = self.random.choice(tuple(Side))
        me, other = self.ends[side], self.ends[side.other]
        flags = self.random.choice(_FORGED_FLAGS)
        misses, wrong = self.random.choice(_FAR), self.random.choice(_FAR)
        made_up = self.random.random() < 0.6
        seq = self.random.randrange(_ALL) if made_up else (me.next + misses) % _ALL
        ack = self.random.randrange(_ALL) if made_up else (other.next + wrong) % _ALL
        self.steps.append(
            Sent(
                side,
                flags,
                seq,
                ack,
                self.random.choice((0, 0, 1, 1000)),
                0,
                is_forged=True,
                off=distance(seq, me.next),
                ack_off=distance(ack, other.next),
            )
        )


def distance(number: int, origin: int) -> int:
    """How far a sequence number is ahead of another one, or behind."""
    return (number - origin + _ALL // 2) % _ALL - _ALL // 2


def _open(talk: _Conversation) -> None:
    """A handshake, which may stop anywhere."""
    random = talk.random
    if talk.said:
        talk.begin()
    stops = random.random()
    talk.say(Side.CLIENT, "S", lost=random.choice(("", "", "", "behind")))
    if random.random() < 0.15:
        talk.repeat()
    if stops < 0.08:
        return
    if random.random() < 0.05:
        talk.say(Side.ENDPOINT, "S")
        talk.ends[Side.ENDPOINT].next -= 1
    talk.ends[Side.ENDPOINT].heard = talk.ends[Side.CLIENT].next
    if random.random() < 0.1:
        talk.ends[Side.ENDPOINT].next = 0
        talk.say(Side.ENDPOINT, "RA")
        return
    talk.say(Side.ENDPOINT, "SA")
    if random.random() < 0.15:
        talk.repeat()
    if stops < 0.16:
        return
    talk.say(Side.CLIENT, "A")
    talk.is_open = True


def _send_payload(talk: _Conversation) -> None:
    side, lost = talk.random.choice(tuple(Side)), talk.random.choice(("", "", "", "before"))
    if not talk.is_open or talk.ends[side].has_ended:
        return
    talk.say(side, "PA", talk.random.randint(1, 1000), lost=lost)
    if not lost and talk.random.random() < 0.7:
        talk.say(side.other, "A")


def _end(talk: _Conversation) -> None:
    side = talk.random.choice(tuple(Side))
    if not talk.is_open or talk.ends[side].has_ended:
        return
    is_both = talk.random.random() < 0.3 and not talk.ends[side.other].has_ended
    talk.say(side, "FA", talk.random.choice((0, 0, 10)))
    if is_both:
        talk.ends[side.other].heard -= 1
        talk.say(side.other, "FA")
        talk.ends[side.other].heard += 1
        talk.say(side, "A")
    if is_both or talk.random.random() < 0.8:
        talk.say(side.other, "A")


def _reset(talk: _Conversation) -> None:
    """A process dies, or answers a late packet."""
    side = talk.random.choice(tuple(Side))
    if talk.said:
        talk.say(side, talk.random.choice(("R", "RA")))
        talk.ends[side.other].has_ended = True


def _again(talk: _Conversation) -> None:
    """The client's port is used again, usually once the connection has ended."""
    has_ended = all(end.has_ended for end in talk.ends.values())
    if has_ended or talk.random.random() < 0.1:
        _open(talk)


def _silence(talk: _Conversation) -> None:
    silences = sum(isinstance(step, Silence) for step in talk.steps)
    if silences < 2 and not isinstance(talk.steps[-1], Silence):
        talk.steps.append(Silence(talk.random.choice(SILENCES)))


_MOVES: dict[Callable[[_Conversation], None], int] = {
    _send_payload: 30,
    _end: 14,
    _again: 12,
    _Conversation.forge: 18,
    _Conversation.repeat: 8,
    _silence: 8,
    _reset: 4,
}


def tcp_script(seed: int) -> Script:
    """One client with one port."""
    random = Random(seed)
    talk = _Conversation(random)
    _open(talk)
    for move in random.choices(list(_MOVES), list(_MOVES.values()), k=MOVES):
        move(talk)
    return Script(seed, Protocol.TCP, talk.steps)

# SPDX-License-Identifier: Apache-2.0
"""Where ebpflb differs from netfilter, on purpose or because netfilter is wrong: docs/services.md
explains why, by the same names. The tests' seeds meet each one; an unused one must be deleted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ebpflb.model.address import Protocol
from tests.bpf.netfilter.script import Flaw, Sent, Side, Step
from tests.bpf.netfilter.seen import Outcome, Seen, State

# LB_RESET_DISTANCE and LB_IN_FLIGHT of ct_sequence.h.
RESET_DISTANCE, IN_FLIGHT = 1 << 16, 1 << 20
# LB_DSR_PACKETS of dsr.h.
DSR_PACKETS = 4

_OPEN = (State.ESTABLISHED, State.CLOSING)
_OURS_ALONE = (Outcome.DELIVERED, Outcome.LEFT)
_NOT_OURS = (Outcome.LEFT, Outcome.DROPPED, Outcome.RESET)


class Case(NamedTuple):
    """A step and the steps before it, with the observations of both sides before and after it."""

    step: Step
    before: Sequence[Step]
    proto: Protocol
    has_dsr: bool
    ours: Seen
    theirs: Seen
    our_last: Seen
    their_last: Seen

    @property
    def outcomes(self) -> tuple[Outcome | None, Outcome | None]:
        """ebpflb's, netfilter's."""
        return self.ours.outcome, self.theirs.outcome

    @property
    def states(self) -> tuple[State, State]:
        """ebpflb's, netfilter's."""
        return self.ours.state, self.theirs.state

    @property
    def last_states(self) -> tuple[State, State]:
        """Before the step."""
        return self.our_last.state, self.their_last.state

    def has(self, flag: str) -> bool:
        """Whether it is a packet with this flag."""
        return isinstance(self.step, Sent) and flag in self.step.flags


class Deviation(NamedTuple):
    """is_last: the rest of the script cannot be compared."""

    name: str
    applies: Callable[[Case], bool]
    is_last: bool = True


def is_harmed(case: Case) -> bool:
    """Whether a forger who knows neither sequence number has changed a connection."""
    step = case.step
    return (
        isinstance(step, Sent)
        and step.is_forged
        and abs(step.off) > 2 * RESET_DISTANCE
        and abs(step.ack_off) > IN_FLIGHT
        and case.our_last.state in _OPEN
        and case.ours.state is not case.our_last.state
    )


def _has_wrong_checksum(case: Case) -> bool:
    is_wrong = isinstance(case.step, Sent) and case.step.flaw is Flaw.CHECKSUM
    return is_wrong and case.outcomes == _OURS_ALONE


def _is_invalid(case: Case) -> bool:
    return case.outcomes == _OURS_ALONE and case.states == case.last_states


def _is_of_no_flow(case: Case) -> bool:
    is_unknown = case.last_states == (State.NONE, State.NONE) and case.ours.state is State.NONE
    return is_unknown and case.ours.outcome in _NOT_OURS


def _is_kept(case: Case) -> bool:
    """After a silence, or once the endpoint has refused the connection."""
    ours, theirs = case.states
    has_just_ended = not isinstance(case.step, Sent) or case.their_last.state is not theirs
    return ours is not State.NONE and theirs is State.NONE and has_just_ended


def _was_kept(case: Case) -> bool:
    ours, theirs = case.last_states
    return isinstance(case.step, Sent) and ours is not State.NONE and theirs is State.NONE


def _is_forgotten(case: Case) -> bool:
    return case.states == (State.NONE, State.CLOSED)


def _is_accepted_after_the_end(case: Case) -> bool:
    has_ended = case.last_states == (State.CLOSED, State.CLOSED)
    return has_ended and case.ours.state is State.NONE and case.has("S") and case.has("A")


def _is_opened_again(case: Case) -> bool:
    ours, theirs = case.states
    is_like_before = case.ours.outcome == case.theirs.outcome
    return ours in _OPEN and theirs is State.OPENING and is_like_before


def _has_missed_a_fin(case: Case) -> bool:
    """Netfilter, while a late copy of the handshake made it take the flow for one that opens."""
    was_opening = case.last_states == (State.CLOSING, State.OPENING)
    return was_opening and case.states == (State.CLOSING, State.ESTABLISHED)


def _is_stream_already(case: Case) -> bool:
    return case.proto is Protocol.UDP and _is_opened_again(case)


def _is_opened_anew(case: Case) -> bool:
    is_first = case.has("S") and case.states == (State.OPENING, State.CLOSED)
    is_third = case.states == (State.ESTABLISHED, State.OPENING)
    return is_first or (is_third and case.outcomes == _OURS_ALONE)


def _gets_another_port(case: Case) -> bool:
    is_new = case.last_states == (State.NONE, State.NONE)
    return is_new and case.ours.state is State.OPENING and case.outcomes == _OURS_ALONE


def _is_near_reset(case: Case) -> bool:
    is_near = isinstance(case.step, Sent) and abs(case.step.off) <= RESET_DISTANCE
    ours, theirs = case.states
    is_ours = ours is State.CLOSED and theirs in (State.OPENING, *_OPEN)
    return (case.has("R") and is_near and is_ours) or _goes_on(case)


def _goes_on(case: Case) -> bool:
    """Both have taken a forged reset for one of the connection, and both sides have sent since."""
    resets = (
        isinstance(step, Sent)
        and step.is_forged
        and "R" in step.flags
        and abs(step.off) <= RESET_DISTANCE
        for step in case.before
    )
    was_closed = case.last_states == (State.CLOSED, State.CLOSED)
    is_open = case.ours.state in _OPEN and case.theirs.state is State.CLOSED
    return was_closed and is_open and any(resets)


def _answers_a_bare_ack(case: Case) -> bool:
    """If the endpoint answered its SYN with a bare ACK, the client sends a RST with that ACK's
    number, far from the others.
    """
    bare = (
        isinstance(step, Sent)
        and step.side is Side.ENDPOINT
        and "A" in step.flags
        and not {"S", "R"} & set(step.flags)
        for step in case.before
    )
    is_ours = case.states == (State.CLOSED, State.OPENING)
    is_client = isinstance(case.step, Sent) and case.step.side is Side.CLIENT
    return case.has("R") and is_client and is_ours and any(bare)


def _is_far_reset(case: Case) -> bool:
    is_ignored = case.ours.state is case.our_last.state
    return case.has("R") and is_ignored and case.theirs.state is State.CLOSED


def _knows_a_number(case: Case) -> bool:
    step = case.step
    if not isinstance(step, Sent) or not step.is_forged:
        return False
    knows = abs(step.off) <= RESET_DISTANCE + step.size + 1 or abs(step.ack_off) <= IN_FLIGHT
    return case.has("F") and knows and case.ours.state in (State.CLOSING, State.CLOSED)


def _is_repeated_fin(case: Case) -> bool:
    return case.has("F") and case.states == (State.CLOSING, State.CLOSED)


def _is_ended_at_the_sender(case: Case) -> bool:
    """With DSR the client's node sees only the client's packets, not its endpoint's."""
    ends = (
        isinstance(step, Sent)
        and step.is_forged
        and step.side is Side.CLIENT
        and bool({"R", "F"} & set(step.flags))
        and abs(step.off) <= RESET_DISTANCE + step.size + 1
        for step in case.before
    )
    is_lost = case.ours.outcome in _NOT_OURS and case.theirs.outcome is Outcome.DELIVERED
    return case.has_dsr and is_lost and any(ends)


def _has_begun_and_paused(case: Case) -> bool:
    """The client's node counts its packets up to LB_DSR_PACKETS of dsr.h."""
    pauses = [number for number, step in enumerate(case.before) if not isinstance(step, Sent)]
    begun = case.before[: pauses[-1]] if pauses else ()
    packets = [step for step in begun if isinstance(step, Sent) and step.side is Side.CLIENT]
    opening = [number for number, step in enumerate(packets) if "S" in step.flags]
    packets = packets[opening[-1] :] if opening else packets
    is_lost = case.ours.outcome in _NOT_OURS and case.theirs.outcome is Outcome.DELIVERED
    return case.has_dsr and is_lost and bool(begun) and len(packets) < DSR_PACKETS


DEVIATIONS = (
    Deviation("wrong checksum", _has_wrong_checksum, is_last=False),
    Deviation("invalid packet", _is_invalid, is_last=False),
    Deviation("packet of no flow", _is_of_no_flow),
    Deviation("longer memory", _is_kept, is_last=False),
    Deviation("packet of a flow that netfilter has forgotten", _was_kept),
    Deviation("SYN ACK after the end", _is_accepted_after_the_end),
    Deviation("end that both have acknowledged", _is_forgotten, is_last=False),
    Deviation("UDP stream", _is_stream_already, is_last=False),
    Deviation("flow opened again", _is_opened_again, is_last=False),
    Deviation("flow opened again", _has_missed_a_fin),
    Deviation("flow opened anew", _is_opened_anew),
    Deviation("port of a stray packet", _gets_another_port),
    Deviation("reset nearby", _is_near_reset),
    Deviation("reset after a bare ACK", _answers_a_bare_ack),
    Deviation("reset far away", _is_far_reset),
    Deviation("FIN with a right number", _knows_a_number),
    Deviation("repeated FIN", _is_repeated_fin),
    Deviation("forged end, with DSR", _is_ended_at_the_sender),
    Deviation("pause after less than four packets, with DSR", _has_begun_and_paused),
)

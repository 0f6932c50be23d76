# SPDX-License-Identifier: Apache-2.0
"""What is seen of a step: what becomes of a packet, and what is remembered of its flow."""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """What becomes of a packet."""

    DELIVERED = "delivered"
    LEFT = "left to the stack"
    DROPPED = "dropped"
    RESET = "answered with a reset"


class State(IntEnum):
    """What a flow is, in the words that both have."""

    NONE = 0
    OPENING = 1
    ESTABLISHED = 2
    CLOSING = 3
    CLOSED = 4


class Seen(NamedTuple):
    """After a step. seconds: for how long the flow is still remembered; outcome: of packets."""

    outcome: Outcome | None
    state: State = State.NONE
    seconds: float = 0

    def __str__(self) -> str:
        what = f"{self.outcome}, " if self.outcome else ""
        return f"{what}{self.state.name.lower()} for {self.seconds:.0f} s"

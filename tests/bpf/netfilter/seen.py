# SPDX-License-Identifier: Apache-2.0
"""What is observed after a step: the fate of the packet, and the state of its flow."""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """What becomes of a packet."""

    DELIVERED = "delivered"
    LEFT = "left to the stack"
    DROPPED = "dropped"
    RESET = "answered with a reset"


class State(IntEnum):
    """The state of a flow, in terms that fit both implementations."""

    NONE = 0
    OPENING = 1
    ESTABLISHED = 2
    CLOSING = 3
    CLOSED = 4


class Seen(NamedTuple):
    """After a step. seconds: how long the flow will still be remembered; outcome: of packets."""

    outcome: Outcome | None
    state: State = State.NONE
    seconds: float = 0

    def __str__(self) -> str:
        what = f"{self.outcome}, " if self.outcome else ""
        return f"{what}{self.state.name.lower()} for {self.seconds:.0f} s"

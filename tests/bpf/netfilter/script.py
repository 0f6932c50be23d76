# SPDX-License-Identifier: Apache-2.0
"""What a script is: packets of a client, of its endpoint and of strangers, and silences between."""

from enum import StrEnum
from typing import NamedTuple

from ebpflb.model.address import Protocol


class Side(StrEnum):
    """Whose addresses a packet has, and where it arrives."""

    CLIENT = "client"
    ENDPOINT = "endpoint"

    @property
    def other(self) -> "Side":
        """Who gets it."""
        return Side.ENDPOINT if self is Side.CLIENT else Side.CLIENT


class Flaw(StrEnum):
    """What is wrong with a frame."""

    NONE = ""
    CHECKSUM = "wrong checksum"
    MAC = "another MAC address"


class Sent(NamedTuple):
    """A packet; all but the first and `size` concern TCP only.

    is_forged: by a stranger. off, ack_off: how far its numbers are from the end of what its side
    and the other one have sent.
    """

    side: Side
    flags: str = ""
    seq: int = 0
    ack: int = 0
    size: int = 0
    scale: int = 0
    flaw: Flaw = Flaw.NONE
    is_forged: bool = False
    off: int = 0
    ack_off: int = 0

    def __str__(self) -> str:
        words = [self.side, self.flags or "datagram", f"seq={self.seq} ack={self.ack}"]
        words += [f"{self.size} bytes", self.flaw, "forged" if self.is_forged else ""]
        return " ".join(filter(None, words))


class Silence(NamedTuple):
    """Nobody sends for so long. The clock is moved."""

    seconds: int

    def __str__(self) -> str:
        return f"silence of {self.seconds} s"


class Pause(NamedTuple):
    """The same, and it does take so long: netfilter's clock of UDP exchanges cannot be moved."""

    def __str__(self) -> str:
        return "pause"


Step = Sent | Silence | Pause


class Script(NamedTuple):
    """The seed that made it, and what happens."""

    seed: int
    proto: Protocol
    steps: list[Step]

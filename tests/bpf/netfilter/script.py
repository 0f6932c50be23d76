# SPDX-License-Identifier: Apache-2.0
"""Scripts: packets of a client, of its endpoint and of forgers, and silences between them."""

from enum import StrEnum
from typing import NamedTuple

from ebpflb.model.address import Protocol


class Side(StrEnum):
    """Whose addresses a packet has, and where it arrives."""

    CLIENT = "client"
    ENDPOINT = "endpoint"

    @property
    def other(self) -> "Side":
        """The receiver."""
        return Side.ENDPOINT if self is Side.CLIENT else Side.CLIENT


class Flaw(StrEnum):
    """What is wrong with a frame."""

    NONE = ""
    CHECKSUM = "wrong checksum"
    MAC = "another MAC address"


class Sent(NamedTuple):
    """A packet; fields other than the first one and `size` apply to TCP only.

    is_forged: sent by an off-path forger. off, ack_off: distance of its numbers from the end of
    what its side and the other one have sent.
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
    """Nobody sends for that long. The clock is moved."""

    seconds: int

    def __str__(self) -> str:
        return f"silence of {self.seconds} s"


class Pause(NamedTuple):
    """As Silence, but in real time: netfilter's clock of UDP exchanges cannot be moved."""

    def __str__(self) -> str:
        return "pause"


Step = Sent | Silence | Pause


class Script(NamedTuple):
    """The steps, and the seed that generated them."""

    seed: int
    proto: Protocol
    steps: list[Step]

# SPDX-License-Identifier: Apache-2.0
"""What an explanation is made of: who asks for what, what each hook would do, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import Chosen
from ebpflb.dataplane.kernel.routes import Route
from ebpflb.dataplane.layout.enums import DropReason, NetnsFlag
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address

RouteTo = Callable[[Address], Route | None]


class ClientKind(StrEnum):
    """Who opens a connection, as the dataplane tells them apart."""

    HOST = "a process of this node"
    POD = "a pod of this node"
    OUTSIDE = "elsewhere"


class Client(NamedTuple):
    """Who opens a connection, and where its packets meet our programs.

    cookie: of its network namespace, 0 where that is not known. ifindex: the device by which its
    packets come to this node, 0 for the node itself. port: its source port, 0 for any.
    """

    kind: ClientKind
    address: Address
    netns_flags: NetnsFlag = NetnsFlag(0)
    cookie: int = 0
    ifindex: int = 0
    port: int = 0


class Fate(StrEnum):
    """What becomes of a new connection."""

    TRANSLATED = "translated"
    REFUSED = "refused"
    DROPPED = "dropped"
    PASSES = "passes"


class Rewrite(NamedTuple):
    """How packets to one backend go on. `source`: what it sees instead of the client's address."""

    source: Address | None = None
    hairpin: bool = False
    reason: DropReason | None = None


class Candidate(NamedTuple):
    """A backend that the connection may get. chance: of all connections that get that far."""

    backend: Chosen
    chance: float
    rewrite: Rewrite = Rewrite()


class Side(StrEnum):
    """Which of a frontend's two ranges a connection gets, by where it comes from."""

    THIS_NODE = "this node"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Step:
    """What one hook would do. `affinity`: what the client's entry says, empty without one."""

    place: str
    fate: Fate
    why: str
    desc: DescRecord | None = None
    side: Side | None = None
    reason: DropReason | None = None
    candidates: tuple[Candidate, ...] = field(default=())
    affinity: str = ""

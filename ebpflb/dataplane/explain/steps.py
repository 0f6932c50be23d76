# SPDX-License-Identifier: Apache-2.0
"""What an explanation is made of: who asks for what, what each hook would do, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import Chosen, Lookups, is_own_host
from ebpflb.dataplane.kernel.routes import Route
from ebpflb.dataplane.layout.enums import AddrFlag, DropReason, NetnsFlag
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address
from ebpflb.model.plan import FrontendKey

RouteTo = Callable[[Address], Route | None]
WORDS = {
    DropReason.LB_DROP_NO_ENDPOINT: "no endpoint may be chosen",
    DropReason.LB_DROP_NO_LOCAL_ENDPOINT: (
        "this node has no endpoint that may be chosen, others have: traffic policy Local"
    ),
    DropReason.LB_DROP_UNKNOWN_PORT: "a ClusterIP without this port",
    DropReason.LB_DROP_SOURCE_RANGE: "the client is in none of the source ranges",
    DropReason.LB_DROP_NO_ROUTE: "this node has no route to any backend it may choose",
    DropReason.LB_DROP_NO_SNAT_ADDRESS: "this node has no address to masquerade with",
    DropReason.LB_DROP_UNUSED_ADDRESS: "inside a ServiceCIDR, but of no Service",
}
# What tc answers with an ICMP error; everything else it drops.
_REFUSED = (DropReason.LB_DROP_NO_ENDPOINT, DropReason.LB_DROP_UNKNOWN_PORT)


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


def ended(
    place: str, desc: DescRecord | None, reason: DropReason, side: Side | None = None
) -> Step:
    """The end of a connection for that reason."""
    is_refused = reason in _REFUSED
    fate = Fate.REFUSED if is_refused else Fate.DROPPED
    return Step(place, fate, WORDS[reason], desc, side, reason)


def why_no_frontend(lookups: Lookups, key: FrontendKey) -> str:
    """Why a connection to that is none of ours."""
    if is_own_host(key.address):
        return "NodePorts at the loopback address are for IPv4 and by --localhost-nodeports"
    flags = lookups.addr_flags_of(key.address)
    if lookups.frontend_lookup(key):
        return "lb_dest_filter does not know the address: no program looks at such packets"
    if flags & AddrFlag.LB_ADDR_NODE:
        return _why_not_node(lookups, key, flags)
    if flags & AddrFlag.LB_ADDR_EXTERNAL:
        return "an external or load-balancer IP without this port: not ours, passes"
    if lookups.is_known(key.address):
        return "the address of a Service that is gone; only old flows of it are known"
    return "no address of a Service or of this node"


def _why_not_node(lookups: Lookups, key: FrontendKey, flags: AddrFlag) -> str:
    if lookups.node_port_lookup(key) is None:
        return "an address of this node, and no NodePort: up to whoever listens there"
    if flags & AddrFlag.LB_ADDR_NODE_PORT:
        return "lb_dest_filter does not know the NodePort: no program looks at such packets"
    return "a NodePort, but not accepted at this address (--nodeport-addresses)"

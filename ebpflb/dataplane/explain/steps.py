# SPDX-License-Identifier: Apache-2.0
"""The parts of an explanation: the client, what each hook would do with its connection, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import IndexedBackend, Lookups, is_own_host
from ebpflb.dataplane.kernel.rtnetlink import Route
from ebpflb.dataplane.layout.enums import AddrFlag, DropReason, NetnsFlag
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address
from ebpflb.model.plan import FrontendKey
from ebpflb.words.connections import Fate

RouteTo = Callable[[Address], Route | None]
NO_LOCAL_PASSES = "only other nodes may have an endpoint, and the Service lets packets pass"
LISTENER = "a process of the node listens there"
# tc refuses these, as a host does where nobody listens.
_REFUSED = (DropReason.LB_DROP_NO_ENDPOINT, DropReason.LB_DROP_UNKNOWN_PORT)


class ClientKind(StrEnum):
    """Who opens a connection, in the categories of the dataplane."""

    HOST = "a process of this node"
    POD = "a pod of this node"
    OUTSIDE = "elsewhere"


class Client(NamedTuple):
    """Who opens a connection, and where its packets arrive at this node.

    cookie: of its network namespace, 0 if unknown. ifindex: the device on which its packets
    arrive, 0 for the node itself. port: its source port, 0 for any.
    """

    kind: ClientKind
    address: Address
    netns_flags: NetnsFlag = NetnsFlag(0)
    cookie: int = 0
    ifindex: int = 0
    port: int = 0


class Rewrite(NamedTuple):
    """What happens to packets to a backend. source: the source address that it sees.

    via_stack: the kernel routes masqueraded packets. node: the node's address to which packets are
    tunneled unchanged. lacks_tunnel: they would be if there were a tunnel to the node.
    """

    source: Address | None = None
    hairpin: bool = False
    reason: DropReason | None = None
    via_stack: bool = False
    node: Address | None = None
    lacks_tunnel: bool = False


class Candidate(NamedTuple):
    """A backend that the connection may get. chance: from 0 to 1, of connections that get here.

    is_full: it has as many connections as the Service's limit allows.
    """

    backend: IndexedBackend
    chance: float
    rewrite: Rewrite = Rewrite()
    is_full: bool = False


class ClientSide(StrEnum):
    """Where a connection comes from: a frontend has separate backends for each side."""

    THIS_NODE = "this node"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Step:
    """What one hook would do.

    affinity: what the client's entry says, "" without affinity. scheduler: what the hash says.
    limits: what the client has of them.
    """

    place: str
    fate: Fate
    why: str
    desc: DescRecord | None = None
    side: ClientSide | None = None
    reason: DropReason | None = None
    candidates: tuple[Candidate, ...] = field(default=())
    affinity: str = ""
    scheduler: str = ""
    limits: str = ""


def ended(
    place: str, desc: DescRecord | None, reason: DropReason, side: ClientSide | None = None
) -> Step:
    """A step that refuses or drops the connection."""
    is_refused = reason in _REFUSED
    fate = Fate.REFUSED if is_refused else Fate.DROPPED
    return Step(place, fate, reason.sentence, desc, side, reason)


_WHY_NOT_LOOPBACK = (
    "no NodePort of the node's loopback: 127.0.0.0/8 has them with --localhost-nodeports, ::1 if "
    "--nodeport-addresses names it, too"
)


def why_no_frontend(lookups: Lookups, key: FrontendKey) -> str:
    """Why there is no frontend for this destination."""
    if is_own_host(key.address):
        return _WHY_NOT_LOOPBACK
    flags = lookups.addr_flags_of(key.address)
    if lookups.frontend_lookup(key):
        return "the address is missing from lb_dest_filter: the programs ignore such packets"
    if flags & AddrFlag.LB_ADDR_NODE:
        return _why_not_node(lookups, key, flags)
    if flags & AddrFlag.LB_ADDR_EXTERNAL:
        return "an external or load-balancer IP without this port: left to the route"
    if lookups.is_known(key.address):
        return "the address of a removed Service; only existing flows are translated"
    return "neither a Service address nor an address of this node"


def _why_not_node(lookups: Lookups, key: FrontendKey, flags: AddrFlag) -> str:
    if lookups.node_port_lookup(key) is None:
        return "an address of this node, but not a NodePort: delivered to the local socket"
    if flags & AddrFlag.LB_ADDR_NODE_PORT:
        return "the NodePort is missing from lb_dest_filter: the programs ignore such packets"
    return "a NodePort, but not accepted at this address (--nodeport-addresses)"

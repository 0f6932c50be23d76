# SPDX-License-Identifier: Apache-2.0
"""A flow, which agents write as JSON and everybody else reads; and what a Service carries."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Raw, Struct, to_builtins
from msgspec.json import Decoder, Encoder

from ebpflb.from_json import JsonError
from ebpflb.model.address import Address
from ebpflb.model.ejection import LEFT_OUT
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePort
from ebpflb.words.connections import DROPPED, FAILED, FAILURES, FORWARDED, REFUSED

LONGEST_NAME = 253
LONGEST_POD = 2 * LONGEST_NAME + 1
_MOST = 1 << 60

Word = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
# NAMESPACE/NAME, KIND/NAME.
PodName = Annotated[str, Meta(max_length=LONGEST_POD)]
IpAddress = Annotated[str, Meta(max_length=45)]
PortNumber = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, Meta(ge=0, le=_MOST)]
_Time = Annotated[
    str,
    Meta(pattern=r"^(19[7-9]|2\d\d)\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d{9}Z\Z"),
]


class FlowFrontend(Struct, kw_only=True, omit_defaults=True):
    """type: a FrontendType."""

    address: IpAddress
    port: PortNumber
    type: Word = ""


class FlowClient(Struct, kw_only=True, omit_defaults=True):
    """port: 0 if the socket had no address yet."""

    address: IpAddress
    port: PortNumber = 0
    pod: PodName = ""
    workload: PodName = ""


class FlowBackend(FlowClient, kw_only=True, omit_defaults=True):
    """local: whether it is on the node that recorded the flow; None if unknown."""

    node: Name = ""
    zone: Name = ""
    local: bool | None = None


class FlowService(Struct, kw_only=True, omit_defaults=True):
    """port: the name of the port, if it has one."""

    namespace: Name
    name: Name
    port: Name = ""


class Policy(Struct, kw_only=True, omit_defaults=True):
    """affinity_timeout: in seconds; 0 without session affinity."""

    internal: Word
    external: Word
    affinity_timeout: Count = 0


class Directions(Struct, kw_only=True):
    """A number for each direction of a flow."""

    original: Count
    reply: Count


class Flow(Struct, kw_only=True, omit_defaults=True):
    """A flow record in words; docs/monitoring.md describes the fields.

    Unknown texts are empty, other unknown values None, and JSON has neither. time: RFC 3339 with
    nanoseconds, in UTC, so that its order as text is that of time. bytes: of payload. id: see
    flow_id(); "" from agents that give none. node: whose agent recorded it; only the plugin sets
    it.
    """

    time: _Time
    event: Word
    verdict: Word
    reason: Word = ""
    ended: Word = ""
    protocol: Word
    family: Word = ""
    path: Word
    client: FlowClient | None = None
    frontend: FlowFrontend
    service: FlowService | None = None
    backend: FlowBackend | None = None
    source: Word = ""
    policy: Policy | None = None
    snat: bool | None = None
    hairpin: bool | None = None
    seconds: Seconds | None = None
    bytes: Directions | None = None
    packets: Directions | None = None
    rtt_seconds: Seconds | None = None
    retransmits: Count | None = None
    seq: Count
    id: Word = ""
    node: Name = ""

    @property
    def why(self) -> str:
        """The reason, or how it ended."""
        return (self.reason or self.ended).replace("_", " ")


def flow_id(time: int, seq: int) -> str:
    """Names a record for good, among those of all nodes and agents; 20 to 30 characters.

    `time`: of the record, nanoseconds since 1970. `seq`: its number in the agent's history.
    """
    return f"{time:x}-{seq:x}"


_ID = re.compile(r"([0-9a-f]{1,16})-[0-9a-f]{1,16}")


def time_of_id(value: object) -> int:
    """The time that is in a flow_id(). ValueError."""
    if found := _ID.fullmatch(str(value)):
        return int(found[1], 16)
    raise ValueError("want the id of a flow, as in the last column of `ebpflb flows -o wide`")


MEASURES = ("rtt_seconds", "seconds")
"""The fields of which a typical value says something about many flows."""


class LostFlows(Struct, kw_only=True, omit_defaults=True):
    """Stands for records that are missing. node: as in Flow.

    since, time: in between they were lost, as the time of a Flow; "" if that is not told.
    """

    lost: Count
    since: _Time = ""
    time: _Time = ""
    node: Name = ""


class FlowTime(Struct):
    """The times on a line of a Flow or LostFlows, which are read faster than all of it."""

    time: str = ""
    since: str = ""


_encode = Encoder().encode
_decode_flow = Decoder(Flow).decode
_decode_lost = Decoder(LostFlows).decode
_decode_time = Decoder(FlowTime).decode


def flow_line(found: Flow | LostFlows) -> bytes:
    """The line of JSON, in printable ASCII: names in it may come from anybody."""
    with suppress(UnicodeEncodeError):
        line = _encode(found)
        if line.isascii() and b"\x7f" not in line:
            return line + b"\n"
    return json.dumps(to_builtins(found)).encode() + b"\n"


def read_flow(line: bytes | str) -> Flow | LostFlows:
    """The flow on a line, which any agent may have written. JsonError."""
    try:
        return _decode_flow(line)
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, RecursionError):
            return _decode_lost(line)
        raise JsonError(str(error)) from None


def read_flow_time(line: bytes | str) -> FlowTime:
    """As read_flow(). JsonError."""
    try:
        return _decode_time(line)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


class FollowedNode(Struct, omit_defaults=True):
    """A line of a watch through the relay: whether the flows of a node arrive, and if not, why."""

    node: Name
    runs: bool
    why: str = ""


class RelayEvent(Struct):
    """A line of such a watch. object: a Flow or LostFlows, or a FollowedNode, as JSON."""

    type: Literal["ADDED", "NODE"]
    object: Raw


_decode_event = Decoder(RelayEvent).decode
_decode_node = Decoder(FollowedNode).decode


def watch_line(found: Flow | LostFlows | FollowedNode) -> bytes:
    """In printable ASCII, as flow_line()."""
    if isinstance(found, FollowedNode):
        return _encode(RelayEvent("NODE", Raw(_encode(found)))) + b"\n"
    return _encode(RelayEvent("ADDED", Raw(flow_line(found)[:-1]))) + b"\n"


def read_watch_line(line: bytes | str) -> FollowedNode | str:
    """A node's state, or the line of a flow for read_flow(). JsonError."""
    try:
        event = _decode_event(line)
        if event.type == "NODE":
            return _decode_node(event.object)
        return bytes(event.object).decode()
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def verdict_of(event: str, ended: str, protocol: str) -> str:
    """One of VERDICTS. `event`, `ended`, `protocol`: as in Flow.

    A connection that a backend accepted has not failed, even if it is reset before any data: load
    balancers end their health checks so. Nor has UDP without an answer, which may be one-way.
    """
    if event in (REFUSED, DROPPED):
        return event
    return FAILED if ended in FAILURES and protocol != "UDP" else FORWARDED


def frontend_type(port: ServicePort, address: Address, number: int) -> FrontendType | None:
    """The type of a port's frontend; None if it is not one of them."""
    if number == port.port:
        if address == port.cluster_ip:
            return FrontendType.CLUSTER_IP
        if address in port.load_balancer_ips:
            return FrontendType.LOAD_BALANCER
        if address in port.external_ips:
            return FrontendType.EXTERNAL_IP
    return FrontendType.NODE_PORT if number == port.node_port else None


class Counts(NamedTuple):
    """The numbers of struct lb_counts, in its order. bytes: of payload.

    A tuple, because a scrape makes tens of thousands.
    """

    connections: int = 0
    refused: int = 0
    dropped: int = 0
    failed: int = 0
    retransmits: int = 0
    original_packets: int = 0
    original_bytes: int = 0
    reply_packets: int = 0
    reply_bytes: int = 0
    retried: int = 0


class Balance(NamedTuple):
    """How connections spread: the largest share of one backend, and what an even share would be.

    Both are None without connections.
    """

    largest: float | None = None
    even: float | None = None

    @property
    def ratio(self) -> float:
        """1 is even; 0 without connections."""
        return self.largest / self.even if self.largest and self.even else 0.0


@dataclass(frozen=True, slots=True)
class BackendRate:
    """One backend. Connections, failed and bytes are per second.

    active: None if unknown. share: of the Service's new connections in this address family; if
    there were none, of the active ones; None if there were none either. ejection: one of
    EJECTION_STATES. removed: no longer an endpoint that serves, but still has connections. pod:
    NAMESPACE/NAME, "" if unknown.
    """

    address: str
    port: int
    local: bool
    terminating: bool
    offered: bool
    connections: float
    active: int | None
    failed: float
    original_bytes: float
    reply_bytes: float
    share: float | None
    trouble: str
    ejection: str
    removed: bool = False
    pod: str = ""

    @property
    def name(self) -> str:
        """Of the pod, or the address."""
        return self.pod or self.address

    @property
    def is_left_out(self) -> bool:
        """Whether it is ejected, or on trial."""
        return self.ejection in LEFT_OUT


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """One Service port. All counts but active and endpoints are per second; None if unknown.

    largest_share: of the backend with the most connections in its address family. even_share: what
    each backend of that family would have. cross_node_share: to backends on other nodes. Shares are
    None without connections. endpoints: backends that take new connections.
    """

    namespace: str
    service: str
    port: str
    protocol: str
    connections: float
    active: int | None
    refused: float
    dropped: float
    failed: float
    retransmits: float
    original_bytes: float
    reply_bytes: float
    endpoints: int | None
    largest_share: float | None
    even_share: float | None
    cross_node_share: float | None
    troubles: tuple[str, ...]
    backends: tuple[BackendRate, ...]

    @property
    def lost(self) -> float:
        """Connections that failed for any reason, per second."""
        return self.refused + self.dropped + self.failed

    @property
    def is_idle(self) -> bool:
        """Whether it carries nothing, and nothing is wrong."""
        counted = (self.connections, self.active, self.lost, self.retransmits)
        carries = any(counted) or self.original_bytes or self.reply_bytes
        return not (carries or self.troubles or any(each.is_left_out for each in self.backends))

    @property
    def imbalance(self) -> float:
        """The busiest backend's share as a multiple of the even share; 0 without connections."""
        return Balance(self.largest_share, self.even_share).ratio


class Spread(NamedTuple):
    """The backends with their shares. balance: of the address family with the most connections.

    far: share of the connections that go to other nodes, None without connections.
    """

    backends: tuple[BackendRate, ...]
    balance: Balance
    far: float | None


def spread(backends: Collection[BackendRate]) -> Spread:
    """How new connections spread over backends, or active ones if a family has no new ones."""
    shared: list[BackendRate] = []
    most, busiest, every, far = 0.0, Balance(), 0.0, 0.0
    for is_ipv6 in (False, True):
        family = [each for each in backends if (":" in each.address) is is_ipv6]
        new = [each.connections for each in family]
        carried = new if any(new) else [float(each.active or 0) for each in family]
        total = sum(carried)
        if total > most:
            most = total
            busiest = balance(carried, sum(each.offered for each in family))
        every += total
        for each, count in zip(family, carried, strict=True):
            shared.append(replace(each, share=count / total if total else None))
            far += 0 if each.local else count
    return Spread(tuple(shared), busiest, far / every if every else None)


ON_REMOVED = "connections on removed pods"
NO_ENDPOINT, NO_LOCAL_ENDPOINT = "no endpoint", "no local endpoint"
ANSWERS_NOBODY, REFUSES = "answers nobody", "refuses connections"
"""Troubles of a Service, and of a backend."""


# Of the clients that have come to their limits, how many are named.
MOST_CLIENTS = 3


def over_limit(client: str, reason: str, times: int = 0) -> str:
    """The trouble of a Service with such a client. `reason`: as in Flow. `times`: 0 if unknown."""
    often = {0: "", 1: ", once"}.get(times, f", {times} times")
    return f"{client} over its limit ({reason}{often})"


def more_over_limit(count: int) -> str:
    """If these are not named."""
    return f"{count} more client{'s' * (count != 1)} over limits"


def endpoints_full(full: int, offered: int) -> str:
    """The trouble of a Service some of whose endpoints have as many connections as they may."""
    return f"{full} of {offered} endpoints full"


def removed_trouble(backends: Iterable[BackendRate]) -> Iterator[str]:
    """The trouble of a Service at least half of whose connections are on removed pods, if it is."""
    active = removed = 0
    for each in backends:
        active += each.active or 0
        removed += (each.active or 0) if each.removed else 0
    if removed and removed * 2 >= active:
        yield f"{removed:.0f} of {active:.0f} {ON_REMOVED}"


def balance(connections: Collection[float], backends: int) -> Balance:
    """`connections`: of each backend, at least one in all; `backends`: how many take new ones."""
    return Balance(max(connections) / sum(connections), 1 / backends if backends else None)

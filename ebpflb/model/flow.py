# SPDX-License-Identifier: Apache-2.0
"""Flows: the values of their records, the names of their addresses, and what a Service carries."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ebpflb.model.address import Address, Family, family_of
from ebpflb.model.ejection import LEFT_OUT
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.plan import FrontendType
from ebpflb.model.pod import NOBODY, NamedPod
from ebpflb.model.service import Service, ServicePort, ServicePortName
from ebpflb.words.connections import DROPPED, FAILED, FAILURES, FORWARDED, REFUSED


class Side(NamedTuple):
    """One end of a connection."""

    address: Address
    port: int


class Traffic(NamedTuple):
    """The traffic of one direction; bytes of payload."""

    packets: int
    bytes: int


class Flow(NamedTuple):
    """The values of a flow record. If unknown, texts are empty and other values are None.

    time: nanoseconds since 1970. event: one of FLOW_EVENTS. reason: for the last two.
    ended: closed, reset, timed_out, replaced, no_answer, backend_refused. path: socket, tc. source:
    this_node, elsewhere. client: port 0, or None, if the socket had no address yet.
    seconds: from the start of the flow to its end. rtt: in seconds.
    """

    time: int
    event: str
    reason: str
    ended: str
    protocol: str
    path: str
    source: str
    client: Side | None
    frontend: Side
    backend: Side | None
    internal_policy: str
    external_policy: str
    snat: bool
    hairpin: bool
    seconds: float | None
    original: Traffic | None
    reply: Traffic | None
    rtt: float | None
    retransmits: int | None

    @property
    def family(self) -> Family:
        """The family of the frontend."""
        return family_of(self.frontend.address)

    @property
    def verdict(self) -> str:
        return verdict_of(self.event, self.ended, self.protocol)


def verdict_of(event: str, ended: str, protocol: str) -> str:
    """One of VERDICTS. `event`, `ended`, `protocol`: as in Flow.

    A connection that a backend accepted has not failed, even if it is reset before any data: load
    balancers end their health checks so. Nor has UDP without an answer, which may be one-way.
    """
    if event in (REFUSED, DROPPED):
        return event
    return FAILED if ended in FAILURES and protocol != "UDP" else FORWARDED


@dataclass(frozen=True, slots=True)
class FlowNames:
    """The names of a flow's objects. local: whether the endpoint is on this node."""

    port: ServicePortName | None = None
    service: Service | None = None
    endpoint: Endpoint | None = None
    client: NamedPod = NOBODY
    backend: NamedPod = NOBODY
    local: bool = False

    def service_port(self, flow: Flow) -> ServicePort | None:
        ports = self.service.ports if self.service else ()
        wanted = (self.port, flow.family)
        return next((port for port in ports if (port.name, port.family) == wanted), None)


def frontend_type(port: ServicePort, frontend: Side) -> FrontendType | None:
    """The type of a port's frontend; None if it is not one of them."""
    if frontend.port == port.port:
        if frontend.address == port.cluster_ip:
            return FrontendType.CLUSTER_IP
        if frontend.address in port.load_balancer_ips:
            return FrontendType.LOAD_BALANCER
        if frontend.address in port.external_ips:
            return FrontendType.EXTERNAL_IP
    return FrontendType.NODE_PORT if frontend.port == port.node_port else None


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

    share: of the Service's new connections in this address family; if there were none, of the
    active ones; None if there were none either. standing: one of STANDINGS.
    removed: no longer an endpoint that serves, but still has connections. pod: NAMESPACE/NAME, ""
    if unknown.
    """

    address: str
    port: int
    local: bool
    terminating: bool
    offered: bool
    connections: float
    active: int
    failed: float
    original_bytes: float
    reply_bytes: float
    share: float | None
    trouble: str
    standing: str
    removed: bool = False
    pod: str = ""

    @property
    def name(self) -> str:
        """Of the pod, or the address."""
        return self.pod or self.address

    @property
    def is_left_out(self) -> bool:
        """Whether it is ejected, or on trial."""
        return self.standing in LEFT_OUT


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """One Service port. All counts but active and endpoints are per second.

    largest_share: of the backend with the most connections in its address family. even_share: what
    each backend of that family would have. cross_node_share: to backends on other nodes. Shares are
    None without connections. endpoints: backends that take new connections.
    """

    namespace: str
    service: str
    port: str
    protocol: str
    connections: float
    active: int
    refused: float
    dropped: float
    failed: float
    retransmits: float
    original_bytes: float
    reply_bytes: float
    endpoints: int
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
        carried = new if any(new) else [float(each.active) for each in family]
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


def removed_trouble(backends: Iterable[BackendRate]) -> Iterator[str]:
    """The trouble of a Service at least half of whose connections are on removed pods, if it is."""
    active = removed = 0
    for each in backends:
        active += each.active
        removed += each.active if each.removed else 0
    if removed and removed * 2 >= active:
        yield f"{removed:.0f} of {active:.0f} {ON_REMOVED}"


def balance(connections: Collection[float], backends: int) -> Balance:
    """`connections`: of each backend; `backends`: how many take new ones."""
    every = sum(connections)
    if not every:
        return Balance()
    return Balance(max(connections) / every, 1 / backends if backends else None)

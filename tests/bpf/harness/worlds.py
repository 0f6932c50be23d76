# SPDX-License-Identifier: Apache-2.0
"""Random Services, endpoints and questions, and the model's answer to each question."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address, ip_network
from random import Random
from typing import NamedTuple

from ebpflb.model.address import (
    WILDCARD,
    Address,
    Family,
    Protocol,
    family_of,
    format_address,
    parse_address,
)
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.node import Node
from ebpflb.model.plan import Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import Service, ServiceName, ServicePort, ServicePortName, TrafficPolicy
from tests.bpf.harness.packets import IPV4, IPV6, End, Net

NODE, ZONE = "node1", "zone1"
NETS = {Family.IPV4: IPV4, Family.IPV6: IPV6}

_CLUSTER = {Family.IPV4: "10.96.7.0", Family.IPV6: "fd00:96::7:0"}
_EXTERNAL = {Family.IPV4: "198.51.100.128", Family.IPV6: "2001:db8:100::80"}
_HERE = {Family.IPV4: "10.1.0.0", Family.IPV6: "fd00:1::"}
_ELSEWHERE = {Family.IPV4: "10.2.0.0", Family.IPV6: "fd00:2::"}
_PORTS, _NODE_PORTS = (53, 80, 443), range(30000, 30006)
_HEALTH_PORTS = range(32000, 32003)
_PROTOCOLS = tuple(Protocol)
_POLICIES = tuple(TrafficPolicy)


class Source(StrEnum):
    """The client: kinds P, H and E of kube-proxy's sources."""

    POD = "pod"
    HOST = "host"
    OUTSIDE = "outside"


class Question(NamedTuple):
    """A new connection or flow."""

    source: Source
    target: End
    proto: Protocol

    @property
    def net(self) -> Net:
        """The network of its family."""
        return NETS[family_of(parse_address(self.target.address))]


class What(StrEnum):
    """The fate of a new connection."""

    TO = "to"
    REFUSED = "refused"
    DROPPED = "dropped"
    LEFT = "left alone"


_EMPTY = {
    IfEmpty.REFUSE: What.REFUSED,
    IfEmpty.DROP: What.DROPPED,
    IfEmpty.PASS: What.LEFT,
}


class Answer(NamedTuple):
    """backends: the possible ones."""

    what: What
    backends: frozenset[End] = frozenset()

    def allows(self, seen: "Answer") -> bool:
        """Whether an observation agrees; one of several backends is enough."""
        return self.what is seen.what and seen.backends <= self.backends


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a node knows at one time."""

    frontends: Mapping[FrontendKey, Frontend]
    desired: Mapping[ServiceName, tuple[Frontend, ...]]
    changes: Changes

    def answer(self, question: Question) -> Answer:
        """The expected answer. The plan has applied the rules; only the frontend lookup is done
        here.
        """
        found = self.frontend(question)
        if found and not _is_allowed(found, question):
            return Answer(What.DROPPED)
        if found:
            return _answer(found.others if question.source is Source.OUTSIDE else found.local)
        return Answer(self._unserved(question))

    def _unserved(self, question: Question) -> What:
        """The route to external addresses leads back to the network."""
        address = parse_address(question.target.address)
        here = [each for each in self.frontends.values() if each.key.address == address]
        if not here or self._is_node(question):
            return What.LEFT
        if any(each.type is FrontendType.CLUSTER_IP for each in here):
            return What.REFUSED
        if question.source is not Source.OUTSIDE:
            return What.LEFT
        wishes = {each.unserved for each in here}
        if Unserved.DROP in wishes:
            return What.DROPPED
        is_passed = Unserved.PASS in wishes and Unserved.REJECT not in wishes
        return What.LEFT if is_passed else What.REFUSED

    def frontend(self, question: Question) -> Frontend | None:
        """The frontend for a question; a NodePort accepts any address of the node."""
        address = parse_address(question.target.address)
        key = FrontendKey(address, question.target.port, question.proto)
        found = self.frontends.get(key)
        if found is None and self._is_node(question):
            found = self.frontends.get(key._replace(address=WILDCARD[question.net.family]))
        return found

    def _is_node(self, question: Question) -> bool:
        return question.target.address in (question.net.node, question.net.overlay)

    def questions(self, random: Random, count: int) -> Iterator[Question]:
        """Questions to existing frontends, and to addresses and ports next to them."""
        keys = sorted(self.frontends)
        for _ in range(count):
            key = random.choice(keys)
            address = key.address
            if key.address in WILDCARD.values():
                net = NETS[family_of(key.address)]
                address = parse_address(random.choice((net.node, net.overlay)))
            port = key.port if random.random() < 0.9 else key.port + 1
            proto = key.protocol if random.random() < 0.9 else random.choice(_PROTOCOLS)
            target = End(format_address(address), port)
            yield Question(random.choice(list(Source)), target, proto)


def _is_allowed(frontend: Frontend, question: Question) -> bool:
    """Whether source ranges allow the client."""
    client = parse_address(address_of(question.source, question.net))
    allowed = frontend.allowed_sources
    return not allowed or any(prefix.covers(client) for prefix in allowed)


def address_of(source: Source, net: Net) -> str:
    """The source address of such a client."""
    return {Source.POD: net.pod, Source.HOST: net.node, Source.OUTSIDE: net.client}[source]


def _answer(choice: Choice) -> Answer:
    if choice.backends:
        ends = (End(format_address(each.address), each.port) for each in choice.backends)
        return Answer(What.TO, frozenset(ends))
    return Answer(_EMPTY[choice.if_empty])


def make_world(random: Random) -> World:
    """What the plan makes of some Services."""
    changes = make_changes(random)
    desired = {name: changes.plan(name) for name in sorted(changes.take())}
    frontends = {each.key: each for planned in desired.values() for each in planned}
    return World(frontends, desired, changes)


def make_changes(random: Random) -> Changes:
    """Some Services; several may claim the same external address or NodePort."""
    changes = Changes(NODE)
    own = tuple(parse_address(net.node) for net in NETS.values())
    changes.set(Node(NODE, zone=random.choice((ZONE, "")), addresses=own))
    for number in range(random.randint(1, 6)):
        for item in _service(random, number):
            changes.set(item)
    return changes


def _service(random: Random, number: int) -> Iterator[Service | EndpointSlice]:
    name = ServiceName("default", f"service{number}")
    names = [
        ServicePortName(*name, f"port{index}", proto)
        for index, proto in enumerate(random.choices(_PROTOCOLS, k=random.randint(1, 3)))
    ]
    families = random.choice(([Family.IPV4], [Family.IPV6], list(Family)))
    ports = [port for family in families for port in _ports(random, names, family, number)]
    made = Service(name, tuple(ports), created=f"2026-01-01T00:00:{random.randint(0, 9):02}Z")
    backup = random.choice((None, f"service{random.randrange(6)}"))
    yield made.annotated_with(
        backup=backup,
        vip_unserved=random.choice((None, None, *Unserved)),
        no_local_endpoint=random.choice((None, *NoLocalEndpoint)),
    )
    for index in range(random.randint(0, 3)):
        yield _slice(random, name, index, names)


def _ports(
    random: Random, names: Iterable[ServicePortName], family: Family, number: int
) -> Iterator[ServicePort]:
    internal, external = random.choices(_POLICIES, k=2)
    affinity = random.choice((0, 0, 60))
    sources = [address_of(source, NETS[family]) for source in Source]
    ranges = random.sample(sources, k=random.choice((0, 0, 1, 2)))
    is_local = external is TrafficPolicy.LOCAL
    health = random.choice((0, *_HEALTH_PORTS)) if is_local else 0
    for name in names:
        yield ServicePort(
            name=name,
            family=family,
            cluster_ip=_nth(_CLUSTER[family], number + 1),
            port=random.choice(_PORTS),
            node_port=random.choice((0, *_NODE_PORTS)),
            external_ips=_some(random, _EXTERNAL[family], 1),
            load_balancer_ips=_some(random, _EXTERNAL[family], 4),
            internal_policy=internal,
            external_policy=external,
            affinity_timeout=affinity,
            source_ranges=tuple(map(_around, ranges)),
            health_check_node_port=health,
        )


def _around(address: str) -> str:
    """The range of an address and its neighbour."""
    return str(ip_network(address).supernet())


def _some(random: Random, first: str, start: int) -> tuple[Address, ...]:
    return tuple(_nth(first, start + number) for number in random.sample(range(3), k=2))


def _slice(
    random: Random, name: ServiceName, index: int, names: Iterable[ServicePortName]
) -> EndpointSlice:
    family = random.choice(list(Family))
    ports = [SlicePort(*each[2:], 8000 + random.randint(0, 2)) for each in names]
    endpoints = [_endpoint(random, family) for _ in range(random.randint(0, 4))]
    return EndpointSlice(
        *(name.namespace, f"{name.name}-{index}", name.name, family),
        ports=tuple(ports),
        endpoints=PackedEndpoints(endpoints),
        weight=random.choice((None, None, 0, 1, 9)),
    )


def _endpoint(random: Random, family: Family) -> Endpoint:
    here = random.random() < 0.5
    hinted = random.random() < 0.8
    return Endpoint(
        address=_nth((_HERE if here else _ELSEWHERE)[family], random.randint(5, 12)),
        ready=(ready := random.random() < 0.6),
        serving=ready or random.random() < 0.7,
        terminating=not ready and random.random() < 0.7,
        node_name=NODE if here else random.choice(("node2", None)),
        zone_hints=(random.choice((ZONE, "zone2")),) if hinted else (),
        node_hints=(random.choice((NODE, "node2")),) if random.random() < 0.3 else (),
    )


def _nth(first: str, number: int) -> Address:
    return parse_address(str(ip_address(first) + number))

# SPDX-License-Identifier: Apache-2.0
"""Attackers with a budget, and regular clients that must not notice them."""

import json
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key
from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.lab import LabNode, Member
from ebpflb.lab.ask import Question, ask_at_once
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import NodeAgent
from ebpflb.model.address import Protocol, parse_address
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.proc_status import ProcStatus

# Connections of each regular client after an attack, on each path and with each protocol.
TIMES = 10
# Entries of one flow.
ENTRIES = 2
# After this many ns, only established connections are remembered.
LATER = 2 * 3600 * 1_000_000_000
# KiB.
MOST_GROWTH = 16 << 10

Place = tuple[str, int]

_RIGHTLESS = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
kind, address, first, ports, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
try:
    socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
except PermissionError:
    pass
else:
    sys.exit("it may forge packets")
for number in range(count):
    with socket.socket(family, getattr(socket, kind)) as one:
        one.setblocking(False)
        try:
            one.connect((address, first + number % ports))
            one.send(b".")
        except OSError:
            pass
"""


class Attacker(NamedTuple):
    """An attacker at a member of the lab. budget: packets, sockets or objects of one attack."""

    name: str
    member: Member
    budget: int

    def send(self, packets: Iterable[tuple[str, bytes]]) -> None:
        """Send complete IP packets, each with the address to route it to, within the budget."""
        with ExitStack() as stack, self.member.entered():
            raw = {
                family: stack.enter_context(
                    socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
                )
                for family in (socket.AF_INET, socket.AF_INET6)
            }
            for number, (address, packet) in enumerate(packets):
                assert number < self.budget, f"{self.name} has sent {number} packets"
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                raw[family].sendto(packet, (address, 0))

    def open_sockets(self, kind: str, place: Place, ports: int = 1) -> None:
        """As an unprivileged user, open and close as many sockets as the budget allows, each
        connected to one of these ports in turn. kind: SOCK_STREAM or SOCK_DGRAM.
        """
        words = [kind, place[0], *map(str, (place[1], ports, self.budget))]
        self.member.exec([sys.executable, "-I", "-S", "-c", _RIGHTLESS, *words])


class Connection(NamedTuple):
    """A regular client's connection, open during attacks, and its pod.

    ends: the client's, and the frontend's. inside: the pod's, and the client's as the pod sees it.
    """

    socket: socket.socket
    is_tcp: bool
    ends: tuple[Place, Place]
    pod: str
    inside: tuple[Place, Place]


class Bystanders:
    """Regular clients of a Service on every path through the first node: from outside by NodePort
    and load-balancer IP, from a pod and from the node by ClusterIP; each family, TCP and UDP.
    """

    def __init__(self, cluster: Cluster, spec: ServiceSpec, held: Iterable[Connection]) -> None:
        self._cluster, self._held = cluster, list(held)
        self._questions: dict[str, tuple[Member, list[Question]]] = {}
        for member, place in ways(cluster, spec):
            _, questions = self._questions.setdefault(member.name, (member, []))
            questions += [Question(*place, each, TIMES) for each in PROTOCOLS]

    def from_outside(self) -> list[Connection]:
        """TCP connections whose packets an outsider may forge."""
        client = self._cluster.lab.client.addresses
        return [each for each in self._held if each.is_tcp and each.ends[0][0] in client]

    def sent_end(self, ends: tuple[Place, Place]) -> int:
        """The next sequence number of the first of two ends, as the first node knows it, or 0."""
        source, target = ((parse_address(address), port) for address, port in ends)
        flow = flow_key(source, target, Protocol.TCP)
        maps = pinned_maps(self._cluster.lab.node("node1"))
        found = next((value for name in FLOW_TABLES if (value := maps[name].lookup(flow))), None)
        return int(LbConntrack.from_buffer_copy(found).sent_end) if found else 0

    @contextmanager
    def unharmed(self, budget: int) -> Iterator[None]:
        """Wraps an attack. Afterwards all clients get new connections, the tables shrink to their
        previous size within the timeouts of opening and ended flows, and connections held open
        still work.
        """
        agents = self._cluster.agents.values()
        before = [(remaining(agent.node), memory(agent)) for agent in agents]
        self._held = [each if each.is_tcp else renewed(each) for each in self._held]
        yield
        assert [found for each in self._held if not each.is_tcp and (found := broken(each))] == []
        answered = self._answered()
        assert answered == dict.fromkeys(answered, TIMES)
        flows = budget + TIMES * len(answered) + len(self._held)
        for agent, (known, kilobytes) in zip(agents, before, strict=True):
            node = agent.node
            assert agent.is_running(), node.name
            assert entries(node) <= known + ENTRIES * flows, node.name
            assert memory(agent) <= kilobytes + MOST_GROWTH, node.name
            wait_until(lambda: remaining(node) <= known, f"what {node.name} knew before")  # noqa: B023
        assert [found for each in self._held if each.is_tcp and (found := broken(each))] == []

    def _answered(self) -> dict[tuple[str, str, int, str], int]:
        """The number of new connections that pods answered, on each path."""
        return {
            (name, *question[:3]): sum("pod" in each for each in said)
            for name, (member, questions) in self._questions.items()
            for question, said in zip(questions, ask_at_once(member, questions), strict=True)
        }


@contextmanager
def bystanders(cluster: Cluster, spec: ServiceSpec) -> Iterator[Bystanders]:
    """With connections that are held open until the block ends."""
    with ExitStack() as stack:
        held = [
            stack.enter_context(connected(member, *place, protocol))
            for member, place in ways(cluster, spec)
            for protocol in PROTOCOLS
        ]
        yield Bystanders(cluster, spec, map(connection_of, held))


def ways(cluster: Cluster, spec: ServiceSpec) -> Iterator[tuple[Member, Place]]:
    """Source member and target."""
    lab, node = cluster.lab, cluster.lab.node("node1")
    for version in cluster.versions:
        service = (lab.cluster_ip(spec.number, version), spec.port)
        yield lab.client, (address_of(node, version), spec.node_port)
        yield lab.client, (lab.ingress_ip(spec.number, version), spec.port)
        yield lab.pod("pod-1-1"), service
        yield node, service


def connection_of(made: socket.socket) -> Connection:
    """Addresses and ports as both sides see them."""
    client, frontend, seen = (
        made.getsockname(),
        made.getpeername(),
        json.loads(exchange(made, b"who")),
    )
    local, peer = ((seen[f"{end}_address"], seen[f"{end}_port"]) for end in ("local", "client"))
    is_tcp, ends = made.type == socket.SOCK_STREAM, (client[:2], frontend[:2])
    return Connection(made, is_tcp, ends, seen["pod"], (local, peer))


def renewed(connection: Connection) -> Connection:
    """A UDP flow that has expired may get another pod."""
    return connection._replace(pod=exchange(connection.socket))


def broken(connection: Connection) -> str:
    """The error of a connection, if it does not work."""
    try:
        pod = exchange(connection.socket)
    except (OSError, AssertionError) as error:
        return f"{connection.ends}: {error!r}"
    return "" if pod == connection.pod else f"{connection.ends}: {connection.pod} became {pod}"


def entries(node: LabNode) -> int:
    """Entries of all flow tables."""
    maps = pinned_maps(node)
    return sum(chunk.size for name in FLOW_TABLES for chunk in maps[name].chunks())


def remaining(node: LabNode) -> int:
    """Entries of flows that an agent would keep after LATER without further packets."""
    expiry = Expiry(pinned_maps(node), clock=lambda: time.monotonic_ns() + LATER)
    while expiry.step().unused is None:
        pass
    return entries(node)


def memory(agent: NodeAgent) -> int:
    """KiB."""
    return ProcStatus.of(agent.pid).number("VmRSS")

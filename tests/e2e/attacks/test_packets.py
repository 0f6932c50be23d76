# SPDX-License-Identifier: Apache-2.0
"""Floods and forged packets: afterwards every regular client is served, and no state is left."""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random

import pytest

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.attacks import forged
from tests.e2e.attacks.forged import ACK, FIN, RST, SYN
from tests.e2e.harness.attackers import Attacker, Bystanders, Place
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.sockets import connected, echoed

BUDGET = 2000
SOCKETS = 200
MADE_UP, GUESSES = 12345, 20
LONG = b"long " * 600

Packets = Iterator[tuple[str, bytes]]
Attack = Callable[[list[Place], Iterable[Place], Bystanders], Packets]


@pytest.fixture(scope="module")
def lab(shared: Cluster) -> Iterator[Lab]:
    """The LAN reaches load-balancer IPs by the first node, as the client does."""
    lab = shared.lab
    routes = [[str(ranges.external()), "via", ranges.node(1)] for ranges in lab.layout.ranges]
    for route in routes:
        lab.underlay.exec(["ip", "route", "add", *route])
    yield lab
    for route in routes:
        lab.underlay.exec(["ip", "route", "del", *route])


@pytest.fixture(params=["LAN", "Internet"])
def network(request: pytest.FixtureRequest, lab: Lab) -> Attacker:
    """The forger's network: the nodes' own, or one behind a router."""
    member = lab.underlay if request.param == "LAN" else lab.client
    return Attacker(request.param, member, BUDGET)


@pytest.fixture
def sources(network: Attacker, lab: Lab) -> Callable[[int], Iterable[Place]]:
    """Forged sources. On the LAN they include another node, its pods, and the client."""
    if network.name == "Internet":
        return forged.strangers
    members = lab.node("node2"), lab.pod("pod-2-1"), lab.client
    return lambda version: (
        (address_of(members[number % len(members)], version), 1024 + number)
        for number in range(60_000)
    )


def frontends(lab: Lab, spec: ServiceSpec, version: int) -> list[Place]:
    """NodePort and load-balancer IP."""
    node = address_of(lab.node("node1"), version)
    return [(node, spec.node_port), (lab.ingress_ip(spec.number, version), spec.port)]


# Packet generators: targets, forged sources, and the regular clients


def syns(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    for target, source in zip(itertools.cycle(targets), sources, strict=False):
        yield target[0], forged.tcp(source, target, SYN, MADE_UP)


def syns_and_made_up_acks(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    """The ACKs follow after the endpoint had time to answer."""
    pairs = list(itertools.islice(zip(itertools.cycle(targets), sources, strict=False), 400))
    for target, source in pairs:
        yield target[0], forged.tcp(source, target, SYN, MADE_UP)
    for target, source in pairs:
        yield target[0], forged.tcp(source, target, ACK, MADE_UP + 1, MADE_UP)


def datagrams(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    for target, source in zip(itertools.cycle(targets), sources, strict=False):
        yield target[0], forged.udp(source, target)


def ends_of_others(targets: list[Place], _: Iterable[Place], others: Bystanders) -> Packets:
    """RSTs and FINs in the name of clients, and of pods to the node, with sequence numbers from all
    over the range, but far from the right ones.
    """
    node, addresses = targets[0][0], {address for address, _ in targets}
    for each in others.from_outside():
        if each.ends[1][0] not in addresses:
            continue
        asked, answered = others.sent_end(each.ends), others.sent_end(each.inside)
        ways = [(each.ends, asked, answered)]
        if each.inside[1][0] == node:
            ways.append((each.inside, answered, asked))
        for (source, target), seq, ack in ways:
            for flags, far in itertools.product((RST, RST | ACK, FIN | ACK), range(1, GUESSES)):
                off = (1 << 32) * far // GUESSES
                yield target[0], forged.tcp(source, target, flags, seq + off, ack + off)


def errors_about_others(
    targets: list[Place], sources: Iterable[Place], others: Bystanders
) -> Packets:
    """As if routers could not forward the replies to clients."""
    numbers = Random(2)
    addresses = {address for address, _ in targets}
    known = [each.ends for each in others.from_outside() if each.ends[1][0] in addresses]
    routers = (address for address, _ in sources)
    for client, frontend in known * 10:
        for kind in (forged.TOO_BIG, forged.UNREACHABLE):
            quoted = forged.tcp(frontend, client, ACK, numbers.randrange(1 << 32))
            yield frontend[0], forged.error(kind, next(routers), frontend[0], quoted)


def fragments(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    """First fragments without a rest, and later fragments without a first one."""
    for number, (source, port) in enumerate(sources):
        target = targets[number % len(targets)]
        head = struct.pack("!HHHH", port, target[1], 3000, 0)
        body, offset = (head + bytes(512), 0) if number % 3 else (bytes(520), 1480)
        yield target[0], forged.fragment(source, target[0], number, offset, body)


def stumps(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    """Truncated anywhere in the transport header, or complete with a wrong length field."""
    for number, source in enumerate(sources):
        target = targets[number % len(targets)]
        length, is_tcp = number // 4 % 24, bool(number & 2)
        whole = forged.tcp(source, target, SYN, 1) if is_tcp else forged.udp(source, target)
        body = whole[-20:] if is_tcp else whole[-13:]
        if length < len(body):
            body = body[:length]
        else:
            at = 12 if is_tcp else 4
            body = body[:at] + bytes([0xFF if length % 2 else 0]) + body[at + 1 :]
        yield target[0], forged.ip(source[0], target[0], 6 if is_tcp else 17, body)


def scan(targets: list[Place], sources: Iterable[Place], _: Bystanders) -> Packets:
    """A port scan by SYNs and by datagrams."""
    for number, source in enumerate(sources):
        target = targets[number % len(targets)][0], 1 + number // 4
        is_tcp = bool(number & 2)
        yield (
            target[0],
            forged.tcp(source, target, SYN, 1) if is_tcp else forged.udp(source, target),
        )


ATTACKS: Mapping[str, Attack] = {
    "SYN flood": syns,
    "SYNs and made-up ACKs": syns_and_made_up_acks,
    "UDP flood": datagrams,
    "forged resets and FINs": ends_of_others,
    "forged ICMP errors": errors_about_others,
    "fragment flood": fragments,
    "truncated packets": stumps,
    "port scan": scan,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_floods_and_forged_packets_do_not_affect_other_clients(
    lab: Lab,
    spec: ServiceSpec,
    others: Bystanders,
    network: Attacker,
    sources: Callable[[int], Iterable[Place]],
    attack: str,
):
    with others.unharmed(BUDGET):
        for version in lab.config.family.versions:
            targets = frontends(lab, spec, version)
            packets = ATTACKS[attack](targets, sources(version), others)
            network.send(itertools.islice(packets, BUDGET // 2))
    for version in lab.config.family.versions:
        with connected(lab.client, *frontends(lab, spec, version)[0], "udp") as made:
            assert echoed(made, LONG) == LONG


# An unprivileged pod


@pytest.mark.parametrize("protocol", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize("where", ["ClusterIP", "NodePort", "all ports of a load-balancer IP"])
def test_sockets_of_a_pod_do_not_affect_other_clients(
    lab: Lab, spec: ServiceSpec, others: Bystanders, where: str, protocol: str
):
    pod = Attacker("a pod without rights", lab.pod("pod-1-2"), SOCKETS)
    with others.unharmed(2 * SOCKETS):
        for version in lab.config.family.versions:
            node_port, (address, _) = frontends(lab, spec, version)
            if where == "NodePort":
                pod.open_sockets(protocol, node_port)
            elif where == "ClusterIP":
                pod.open_sockets(protocol, (lab.cluster_ip(spec.number, version), spec.port))
            else:
                pod.open_sockets(protocol, (address, 1), SOCKETS)

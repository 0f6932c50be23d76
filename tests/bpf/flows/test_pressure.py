# SPDX-License-Identifier: Apache-2.0
"""More half-open connections than the tables hold: established flows survive."""

import time
from collections.abc import Iterable
from functools import partial
from statistics import median

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.model.address import Protocol
from tests.bpf.flows.held import FLOWS, Held, UdpSessions
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.loading import SIZES, Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind, source_of, target_of
from tests.bpf.harness.programs import prog_test_run
from tests.bpf.harness.services import (
    NODE_PORT,
    client,
    cluster_ip,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

FLOOD = 40_000
FIRST_PORT = 20_000
# A packet takes some hundred nanoseconds; only a scan of a table would take this long.
LONGEST_NS = 50_000
_IFINDEX_AT = 40


class Flood:
    """SYNs of one client from many ports to one frontend, output ignored."""

    def __init__(self, programs: Loaded, program: str, syn: bytes, ifindex: int) -> None:
        self._program = programs.programs[program]
        self._context = bytes(_IFINDEX_AT) + u32(ifindex) + bytes(148)
        self._syn = syn
        self.times: list[int] = []

    def send(self, sources: Iterable[int]) -> None:
        """One SYN for each number, which stands for a source port."""
        for number in sources:
            run = prog_test_run(self._program, self._from(number), ctx=self._context)
            self.times.append(run.duration)

    def _from(self, number: int) -> bytes:
        at = self._syn.index(FIRST_PORT.to_bytes(2, "big"))
        return self._syn[:at] + (1024 + number).to_bytes(2, "big") + self._syn[at + 2 :]


@pytest.fixture
def held(datapath: Datapath, node: Node, tcp: Kind) -> Held:
    node_addresses(datapath, node)
    made = Held(datapath, node, tcp)
    for port in range(50_000, 50_000 + FLOWS):
        made.establish(port)
    return made


@pytest.fixture
def flood(programs: Loaded, node: Node, tcp: Kind, held: Held) -> Flood:
    syn = bytes(tcp.frame(client(tcp, FIRST_PORT), held.frontend, "S"))
    return Flood(programs, "lb_host_ingress", syn, node.uplink.ifindex)


def test_a_flood_of_syns_costs_no_established_connection(
    datapath: Datapath, held: Held, flood: Flood
):
    before = set(datapath.established())
    assert len(before) == 2 * FLOWS
    flood.send(range(FLOOD))
    assert set(datapath.established()) == before
    assert 0 < len(datapath.short()) <= SIZES.ct_short
    held.assert_all_go_on()
    assert not datapath.drops()


def test_a_flood_of_syns_costs_the_same_for_each(flood: Flood):
    flood.send(range(FLOOD))
    assert median(flood.times[-1000:]) < LONGEST_NS


def test_closed_connections_are_lost_before_established_ones(
    datapath: Datapath, held: Held, flood: Flood
):
    source = held.request(60_000, "S")
    held.reply(source, "SA")
    held.request(60_000, "A")
    held.request(60_000, "R")
    flood.send(range(FLOOD))
    assert len(datapath.established()) == 2 * FLOWS
    held.assert_all_go_on()


def test_a_connection_is_made_in_the_midst_of_a_flood(held: Held, flood: Flood):
    for number in range(5):
        syns = range(number * 1000, number * 1000 + 100)
        held.establish(61_000 + number, partial(flood.send, syns))
    flood.send(range(FLOOD))
    held.assert_all_go_on()


def test_without_ports_a_connection_is_dropped_and_established_ones_keep_theirs(
    datapath: Datapath, held: Held, flood: Flood
):
    datapath.settings(snat_ports=((2000, 2009), (3000, 3009)))
    begin = time.monotonic()
    flood.send(range(1000))
    dropped = datapath.drops()
    assert set(dropped) == {DropReason.LB_DROP_SNAT_PORTS}
    # Each port is free again every three seconds.
    rounds = 1 + int(time.monotonic() - begin) // 3
    assert dropped[DropReason.LB_DROP_SNAT_PORTS] >= 1000 - 20 * rounds
    held.assert_all_go_on()


@pytest.fixture
def sessions(datapath: Datapath, node: Node, udp: Kind) -> UdpSessions:
    node_addresses(datapath, node)
    return UdpSessions(datapath, node, udp)


def flood_of(programs: Loaded, node: Node, kind: Kind, frontend: End) -> Flood:
    first = bytes(kind.frame(client(kind, FIRST_PORT), frontend, "S"))
    return Flood(programs, "lb_host_ingress", first, node.uplink.ifindex)


def test_a_flood_of_syns_moves_no_udp_session(
    programs: Loaded, datapath: Datapath, node: Node, udp: Kind, sessions: UdpSessions
):
    tcp = Kind(udp.net, Protocol.TCP)
    held = Held(datapath, node, tcp)
    for port in range(50_000, 50_000 + FLOWS):
        held.establish(port)
    flood_of(programs, node, tcp, held.frontend).send(range(4 * SIZES.ct_short))
    sessions.assert_all_go_on()
    held.assert_all_go_on()


def test_a_flood_of_datagrams_moves_no_stream(
    programs: Loaded, datapath: Datapath, node: Node, udp: Kind, sessions: UdpSessions
):
    sessions.become_streams()
    flood_of(programs, node, udp, sessions.frontend).send(range(4 * SIZES.ct_udp))
    sessions.assert_all_go_on()


# Direct connections on ports that look masqueraded


@pytest.mark.parametrize("flags", ["A", "SA", "PA", "FA", "R", "RA"])
def test_a_packet_of_a_direct_connection_passes_a_node_port(
    datapath: Datapath, node: Node, tcp: Kind, flags: str
):
    node_addresses(datapath, node)
    frontend = node_port(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    assert frontend.port == NODE_PORT
    packet = tcp.frame(client(tcp), frontend, flags)
    assert_untouched(datapath, "lb_host_ingress", packet, ifindex=node.uplink.ifindex)


def test_a_backend_reaches_a_node_port_from_the_port_that_it_serves(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    serving = End(kind.net.pod, 8080)
    own = datapath.backend(serving, kind.proto)
    other, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    service = cluster_ip(datapath, kind, [own])
    asked = datapath.run("lb_pod_ingress", kind.frame(serving, frontend, "S"))
    assert (asked.verdict, target_of(asked.packet)) == (Verdict.PASS, other)
    source = source_of(asked.packet)
    answer = datapath.run("lb_pod_egress", kind.frame(other, source, "SA"))
    assert (source_of(answer.packet), target_of(answer.packet)) == (frontend, serving)
    # At the same time it is a client of the backend through another Service.
    datapath.run("lb_pod_ingress", kind.frame(pod(kind, 5000), service, "S"))
    again = datapath.run("lb_pod_ingress", kind.frame(serving, frontend, "A"))
    assert (target_of(again.packet), source_of(again.packet)) == (other, source)


def test_a_backend_reaches_itself_by_a_node_port_from_the_port_that_it_serves(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    serving = End(kind.net.pod, 8080)
    frontend = node_port(datapath, kind, [datapath.backend(serving, kind.proto)])
    asked = datapath.run("lb_pod_ingress", kind.frame(serving, frontend, "S"))
    assert (asked.verdict, target_of(asked.packet)) == (Verdict.REDIRECT, serving)
    source = source_of(asked.packet)
    assert source != serving
    answer = datapath.run("lb_pod_ingress", kind.frame(serving, source, "SA"))
    assert (source_of(answer.packet), target_of(answer.packet)) == (frontend, serving)

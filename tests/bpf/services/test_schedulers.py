# SPDX-License-Identifier: Apache-2.0
"""Schedulers: the backends of new flows, at tc and at the sockets."""

from collections import Counter
from itertools import pairwise, repeat

import pytest

from ebpflb.dataplane.explain.flow_hash import client_hash, flow_hash, place_of
from ebpflb.dataplane.layout.enums import DescFlag, NetnsFlag, SchedulerCode
from ebpflb.dataplane.layout.records import pack_index, pack_open, unpack_open
from ebpflb.model.address import parse_address
from ebpflb.model.maglev import lookup_table
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.services import WILDCARD, external_ip, node_addresses, node_port
from tests.bpf.harness.sessions import TIMEOUT, Sessions
from tests.bpf.services.chance import is_likely

FEW = 7
TABLE = 251
ROUND_ROBIN = SchedulerCode["LB_SCHEDULER_ROUND_ROBIN"]
LEAST_CONNECTIONS = SchedulerCode["LB_SCHEDULER_LEAST_CONNECTIONS"]
SOURCE_HASH = SchedulerCode["LB_SCHEDULER_SOURCE_HASH"]
MAGLEV = SchedulerCode["LB_SCHEDULER_MAGLEV"]


@pytest.fixture
def sessions(datapath: Datapath, kind: Kind) -> Sessions:
    """A ClusterIP with a few backends and no affinity."""
    made = Sessions(datapath, kind)
    made.serve(made.backends[:FEW])
    made.change(made.frontend, affinity_timeout=0)
    return made


def in_turn(chosen: list[int], backends: list[int]) -> bool:
    """Whether each backend follows the previous one in the list."""
    places = [backends.index(each) for each in chosen]
    return all((b - a - 1) % len(backends) == 0 for a, b in pairwise(places))


# Round robin


def test_backends_come_in_turn(sessions: Sessions):
    sessions.change(sessions.frontend, affinity_timeout=0, scheduler=ROUND_ROBIN)
    assert in_turn([sessions.ask() for _ in range(3 * FEW)], sessions.backends[:FEW])


def test_random_backends_do_not_come_in_turn(sessions: Sessions):
    chosen = [sessions.ask() for _ in range(3 * FEW)]
    assert not in_turn(chosen, sessions.backends[:FEW])


def test_sockets_take_turns_with_packets(sessions: Sessions, asker: Asker, node: Node):
    sessions.change(sessions.frontend, affinity_timeout=0, scheduler=ROUND_ROBIN)
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    chosen = []
    for _ in range(FEW):
        found = asker.connect(sessions.frontend, sessions.kind.proto)
        assert isinstance(found, End)
        chosen += [sessions.backends[found.port - 8000], sessions.ask()]
    assert in_turn(chosen, sessions.backends[:FEW])


def test_clients_of_this_node_and_others_have_their_own_turns(sessions: Sessions, node: Node):
    here, elsewhere = sessions.backends[:2], sessions.backends[2:4]
    frontend = external_ip(sessions.datapath, sessions.kind, here, elsewhere)
    sessions.change(frontend, affinity_timeout=0, scheduler=ROUND_ROBIN)
    node_addresses(sessions.datapath, node)
    seen = set()
    for _ in range(4):
        seen.add(sessions.ask(frontend))
        frame = sessions.kind.frame(sessions.source(sessions.kind.net.client), frontend)
        sent = sessions.datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
        seen.add(sessions.chosen(sent.packet))
    assert seen == {*here, *elsewhere}


def test_the_first_turn_is_anywhere(sessions: Sessions):
    offered, first = sessions.range_of(sessions.backends), set()
    for port in range(300, 340):
        frontend = End(sessions.kind.net.cluster_ip, port)
        sessions.datapath.frontend(frontend, sessions.kind.proto)
        sessions.change(frontend, affinity_timeout=0, scheduler=ROUND_ROBIN, local=offered)
        first.add(sessions.ask(frontend))
    # The average is 28 of 50.
    assert len(first) > 10


def test_a_turn_follows_the_backends_as_they_come_and_go(sessions: Sessions):
    for count in (5, 1, 3, FEW):
        offered = sessions.backends[:count]
        found = sessions.range_of(offered)
        fields = {"affinity_timeout": 0, "scheduler": ROUND_ROBIN, "local": found}
        sessions.change(sessions.frontend, **fields)
        assert in_turn([sessions.ask() for _ in range(2 * count)], offered)


# Least connections


def least(sessions: Sessions) -> None:
    """Have the ClusterIP compare open connections."""
    fields = {"affinity_timeout": 0, "scheduler": LEAST_CONNECTIONS}
    sessions.change(sessions.frontend, **fields, flags=DescFlag.LB_DESC_COUNTS_OPEN)


def open_at(sessions: Sessions, backend: int) -> int:
    return unpack_open(sessions.datapath.maps["lb_open"].lookup(pack_index(backend)) or b"")


def all_open(sessions: Sessions) -> list[int]:
    return [open_at(sessions, each) for each in sessions.backends[:FEW]]


def test_the_fullest_backend_gets_nothing_and_the_emptiest_most(sessions: Sessions):
    counts = sessions.datapath.maps["lb_open"]
    for place, backend in enumerate(sessions.backends[:FEW]):
        counts.update(pack_index(backend), pack_open(1000 * place - 500))
    least(sessions)
    chosen = Counter(sessions.ask() for _ in range(420))
    shares = [chosen[each] for each in sessions.backends[:FEW]]
    # Of 42 pairs each backend wins against those with more connections than itself.
    expected = [2 * (FEW - 1 - place) / (FEW * (FEW - 1)) for place in range(FEW)]
    assert shares[-1] == 0
    assert all(map(is_likely, shares, repeat(420), expected))


def test_connections_are_counted_and_so_come_out_even(sessions: Sessions):
    least(sessions)
    chosen = Counter(sessions.ask() for _ in range(FEW * 100))
    assert all_open(sessions) == [chosen[each] for each in sessions.backends[:FEW]]
    # Exceeded once in 10^10 runs, by the Markov chain of the differences. Without counting it would
    # be 25 on average.
    assert max(chosen.values()) - min(chosen[each] for each in sessions.backends[:FEW]) <= 16


def test_a_single_backend_gets_every_connection(sessions: Sessions):
    least(sessions)
    sessions.change(
        sessions.frontend, affinity_timeout=0, local=sessions.range_of([sessions.backends[0]])
    )
    assert {sessions.ask() for _ in range(5)} == {sessions.backends[0]}


def test_nothing_is_counted_for_other_schedulers(sessions: Sessions):
    for _ in range(5):
        sessions.ask()
    assert not any(all_open(sessions))


def test_a_connection_that_is_reset_counts_no_more(datapath: Datapath, tcp: Kind):
    sessions = Sessions(datapath, tcp)
    sessions.serve(sessions.backends[:FEW])
    least(sessions)
    source = sessions.source()
    chosen = sessions.chosen(
        datapath.run("lb_pod_ingress", tcp.frame(source, sessions.frontend)).packet
    )
    assert open_at(sessions, chosen) == 1
    end = End(tcp.net.remote, 8000 + sessions.backends.index(chosen))
    datapath.run("lb_pod_egress", tcp.frame(end, source, "RA"))
    assert sum(all_open(sessions)) == 0


@pytest.mark.parametrize("again", [1, 2])
def test_sockets_count_while_they_are_open(
    sessions: Sessions, asker: Asker, node: Node, again: int
):
    """The client closes each socket before it replies."""
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    sessions.change(sessions.frontend, affinity_timeout=0, flags=DescFlag.LB_DESC_COUNTS_OPEN)
    for _ in range(again):
        by_socket(sessions, asker)
    assert sum(all_open(sessions)) == 0


# Hashes


def hashed(sessions: Sessions, scheduler: SchedulerCode, table: int = TABLE) -> list[int]:
    """Have the ClusterIP use a hash; returns what it looks up: the table, or without one the
    range.
    """
    offered = sessions.backends[:FEW]
    planned = [sessions.planned(each) for each in offered]
    found = [offered[each] for each in lookup_table(planned, table)] if table else []
    place = sessions.range_of(offered, found)
    fields = {"affinity_timeout": 0, "scheduler": scheduler, "local": place, "others": place}
    sessions.change(sessions.frontend, **fields)
    return found or offered


def of_flow(sessions: Sessions, source: End, frontend: End) -> int:
    place = parse_address(frontend.address), frontend.port, sessions.kind.proto
    return flow_hash(parse_address(source.address), source.port, place)


@pytest.mark.parametrize("table", [TABLE, 0])
def test_maglev_looks_up_what_the_model_says(sessions: Sessions, table: int):
    looked_up = hashed(sessions, MAGLEV, table)
    for _ in range(40):
        source = sessions.source()
        number = of_flow(sessions, source, sessions.frontend)
        frame = sessions.kind.frame(source, sessions.frontend)
        chosen = sessions.chosen(sessions.datapath.run("lb_pod_ingress", frame).packet)
        assert chosen == looked_up[place_of(number, len(looked_up))]


def test_maglev_takes_a_node_port_for_the_same_at_every_node(sessions: Sessions, node: Node):
    node_addresses(sessions.datapath, node)
    looked_up = hashed(sessions, MAGLEV)
    place = sessions.range_of(sessions.backends[:FEW], looked_up)
    at_node = node_port(sessions.datapath, sessions.kind, sessions.backends[:1])
    anywhere = End(WILDCARD[sessions.kind.net], at_node.port)
    fields = {"affinity_timeout": 0, "scheduler": MAGLEV, "others": place}
    sessions.change(anywhere, **fields)
    for address in (sessions.kind.net.node, sessions.kind.net.overlay):
        for port in range(2000, 2010):
            source = End(sessions.kind.net.client, port + (address == sessions.kind.net.node) * 50)
            frame = sessions.kind.frame(source, End(address, at_node.port))
            sent = sessions.datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
            number = of_flow(sessions, source, anywhere)
            assert sessions.chosen(sent.packet) == looked_up[place_of(number, TABLE)]


@pytest.mark.parametrize("table", [TABLE, 0])
def test_source_hash_gives_a_client_one_backend(sessions: Sessions, table: int):
    looked_up = hashed(sessions, SOURCE_HASH, table)
    prefix, seen = sessions.kind.net.pod.removesuffix("5"), set()
    for client in [f"{prefix}{100 + i}" for i in range(20)]:
        (chosen,) = {sessions.ask(client=client) for _ in range(3)}
        number = client_hash(parse_address(client))
        assert chosen == looked_up[place_of(number, len(looked_up))]
        seen.add(chosen)
    assert len(seen) > 1


def test_source_hash_takes_processes_of_the_host_for_the_node(
    sessions: Sessions, asker: Asker, node: Node
):
    looked_up = hashed(sessions, SOURCE_HASH)
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    number = client_hash(parse_address(sessions.kind.net.node))
    expected = looked_up[place_of(number, TABLE)]
    assert {by_socket(sessions, asker) for _ in range(5)} == {expected}


def test_source_hash_takes_a_pod_for_one_client(sessions: Sessions, asker: Asker, node: Node):
    hashed(sessions, SOURCE_HASH)
    say_who_asks(sessions.datapath.maps, 0)
    assert len({by_socket(sessions, asker) for _ in range(10)}) == 1


def test_maglev_spreads_the_sockets_of_a_process(sessions: Sessions, asker: Asker, node: Node):
    hashed(sessions, MAGLEV)
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    assert len({by_socket(sessions, asker) for _ in range(40)}) > FEW // 2


def by_socket(sessions: Sessions, asker: Asker) -> int:
    """The index of the backend that a new socket gets."""
    found = asker.connect(sessions.frontend, sessions.kind.proto)
    assert isinstance(found, End)
    return sessions.backends[found.port - 8000]


@pytest.mark.parametrize("scheduler", [SchedulerCode["LB_SCHEDULER_RANDOM"], MAGLEV])
def test_connections_are_spread_evenly(sessions: Sessions, scheduler: SchedulerCode):
    hashed(sessions, scheduler)
    counts = Counter(sessions.ask() for _ in range(700))
    assert all(is_likely(counts[each], 700, 1 / FEW) for each in sessions.backends[:FEW])


# All schedulers


@pytest.mark.parametrize("scheduler", list(SchedulerCode))
def test_affinity_decides_before_the_scheduler(sessions: Sessions, scheduler: SchedulerCode):
    sessions.change(sessions.frontend, affinity_timeout=TIMEOUT, scheduler=scheduler)
    sessions.keep(sessions.backends[3])
    assert {sessions.ask() for _ in range(2 * FEW)} == {sessions.backends[3]}


@pytest.mark.parametrize("scheduler", list(SchedulerCode))
def test_a_client_without_affinity_yet_asks_the_scheduler(
    sessions: Sessions, scheduler: SchedulerCode
):
    sessions.change(sessions.frontend, affinity_timeout=TIMEOUT, scheduler=scheduler)
    prefix = sessions.kind.net.pod.removesuffix("5")
    chosen = [sessions.ask(client=f"{prefix}{100 + i}") for i in range(40)]
    assert len(set(chosen)) > 1
    assert in_turn(chosen, sessions.backends[:FEW]) is (scheduler == ROUND_ROBIN)

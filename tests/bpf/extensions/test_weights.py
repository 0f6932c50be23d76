# SPDX-License-Identifier: Apache-2.0
"""Backends with weights: at tc, at XDP and at the sockets, by every scheduler."""

from collections import Counter
from itertools import repeat

import pytest
from scapy.layers.l2 import Ether

from ebpflb.dataplane.layout.enums import DescFlag, NetnsFlag, SchedulerCode
from ebpflb.dataplane.layout.records import SCHEDULERS, pack_index, pack_open
from ebpflb.dataplane.services.tables import table_of
from ebpflb.model.extensions.apportionment import as_slots, as_turns
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import Datapath, XdpAction
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, target_of
from tests.bpf.harness.services import client, local_backend, node_port, remote_backend
from tests.bpf.harness.sessions import Sessions
from tests.bpf.services.chance import is_likely
from tests.bpf.xdp.conftest import write_uplinks

WEIGHTS = [60, 30, 10]
SHARES = [0.6, 0.3, 0.1]
TABLE = 251
MANY = 400
RANDOM = SchedulerCode["LB_SCHEDULER_RANDOM"]
ROUND_ROBIN = SchedulerCode["LB_SCHEDULER_ROUND_ROBIN"]
LEAST_CONNECTIONS = SchedulerCode["LB_SCHEDULER_LEAST_CONNECTIONS"]
SOURCE_HASH = SchedulerCode["LB_SCHEDULER_SOURCE_HASH"]
MAGLEV = SchedulerCode["LB_SCHEDULER_MAGLEV"]
HASHES = (SOURCE_HASH, MAGLEV)
SCHEDULED = pytest.mark.parametrize("scheduler", list(SchedulerCode))


@pytest.fixture
def sessions(datapath: Datapath, kind: Kind) -> Sessions:
    return Sessions(datapath, kind)


def weigh(sessions: Sessions, scheduler: SchedulerCode) -> list[int]:
    """Have the ClusterIP offer three backends, as the agent writes them; returns their indices."""
    offered = sessions.backends[:3]
    size = TABLE * SCHEDULERS[scheduler].has_table
    weights = as_slots(WEIGHTS, size) if size else as_turns(WEIGHTS)
    pairs = zip(offered, weights, strict=True)
    planned = [sessions.planned(index)._replace(weight=weight) for index, weight in pairs]
    place = sessions.range_of(offered, [offered[each] for each in table_of(planned, size)])
    fields = {"affinity_timeout": 0, "scheduler": scheduler, "local": place, "others": place}
    flags = DescFlag.LB_DESC_COUNTS_OPEN if scheduler == LEAST_CONNECTIONS else 0
    sessions.change(sessions.frontend, **fields, flags=flags)
    for index, weight in zip(offered, weights, strict=True):
        record = sessions.datapath.backend_at(index)
        record.weight = weight * bool(flags)
        sessions.datapath.maps["lb_backends"].update(pack_index(index), bytes(record))
    return offered


def assert_weighted(chosen: list[int], offered: list[int]) -> None:
    counts = Counter(chosen)
    assert set(counts) <= set(offered)
    shares = [counts[each] for each in offered]
    assert all(map(is_likely, shares, repeat(len(chosen)), SHARES)), shares


@SCHEDULED
def test_a_backend_gets_its_share_at_tc(sessions: Sessions, scheduler: SchedulerCode):
    offered = weigh(sessions, scheduler)
    clients = _clients(sessions.kind.net.pod) if scheduler == SOURCE_HASH else [""] * MANY
    assert_weighted([sessions.ask(client=each) for each in clients], offered)


def _clients(first: str) -> list[str]:
    """Other addresses of its network."""
    return [f"{first[:-1]}{number}" for number in range(100, 200)]


@pytest.mark.parametrize("scheduler", [each for each in SchedulerCode if each != SOURCE_HASH])
def test_a_backend_gets_its_share_at_the_sockets(
    sessions: Sessions, asker: Asker, node: Node, scheduler: SchedulerCode
):
    """A source hash takes the process for one client."""
    offered = weigh(sessions, scheduler)
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    chosen = []
    for _ in range(MANY):
        found = asker.connect(sessions.frontend, sessions.kind.proto)
        assert isinstance(found, End)
        chosen.append(sessions.backends[found.port - 8000])
    assert_weighted(chosen, offered)


@SCHEDULED
def test_a_backend_gets_its_share_at_xdp(
    one_cpu: None, sessions: Sessions, node: Node, scheduler: SchedulerCode
):
    """All are on another node: XDP sends each packet, or passes it on."""
    datapath, kind = sessions.datapath, sessions.kind
    write_uplinks(datapath, node)
    place = node_port(datapath, kind, sessions.backends[:1])
    sessions.frontend, cluster_ip = End(_wildcard(kind), place.port), sessions.frontend
    offered = weigh(sessions, scheduler)
    sessions.frontend = cluster_ip
    chosen = []
    sources = [client(kind, 5000 + number) for number in range(MANY)]
    if scheduler == SOURCE_HASH:
        sources = [End(each, 5000) for each in _clients(kind.net.client)]
    for source in sources:
        frame = bytes(kind.frame(source, place))
        action, sent = datapath.run_xdp(frame, ifindex=node.uplink.ifindex)
        if action is XdpAction.PASS:
            _, sent = datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
        chosen.append(sessions.chosen(Ether(sent)))
    assert_weighted(chosen, offered)


def _wildcard(kind: Kind) -> str:
    return "::" if ":" in kind.net.node else "0.0.0.0"


def test_turns_are_exact(sessions: Sessions):
    offered = weigh(sessions, ROUND_ROBIN)
    chosen = [sessions.ask() for _ in range(30)]
    for begin in range(20):
        counts = Counter(chosen[begin : begin + 10])
        assert [counts[each] for each in offered] == [6, 3, 1]


def test_a_flow_that_xdp_passes_on_keeps_the_choice_of_the_table(
    one_cpu: None, datapath: Datapath, node: Node, kind: Kind
):
    """A backend here has nine slots of the table's ten, of which XDP takes any."""
    write_uplinks(datapath, node)
    here, index = local_backend(datapath, kind)
    elsewhere = remote_backend(datapath, kind)[1]
    sessions = Sessions(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    place = sessions.range_of([index, elsewhere], [index] * 9 + [elsewhere])
    anywhere = End(_wildcard(kind), frontend.port)
    sessions.change(anywhere, affinity_timeout=0, local=place, others=place)
    passed = 0
    for port in range(2000, 2100):
        frame = bytes(kind.frame(client(kind, port), frontend))
        action, sent = datapath.run_xdp(frame, ifindex=node.uplink.ifindex)
        if action is XdpAction.PASS:
            _, sent = datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
            passed += 1
        assert (target_of(Ether(sent)) == here) is (action is XdpAction.PASS)
    assert is_likely(passed, 100, 0.9)


def test_open_connections_are_compared_by_weight(sessions: Sessions):
    """Of two with as many connections for their weight, neither is preferred."""
    offered = weigh(sessions, LEAST_CONNECTIONS)
    counts = sessions.datapath.maps["lb_open"]
    for index, open_now in zip(offered, (6000, 1000, 6000), strict=True):
        counts.update(pack_index(index), pack_open(open_now))
    chosen = Counter(sessions.ask() for _ in range(MANY))
    # The third never wins, and the second always, where it is drawn with another.
    assert not chosen[offered[2]]
    # Of 90 pairs of different slots of ten.
    assert is_likely(chosen[offered[1]], MANY, (90 - 7 * 6) / 90)


def test_a_backend_with_a_full_weight_is_preferred_to_one_that_is_full(sessions: Sessions):
    offered = weigh(sessions, LEAST_CONNECTIONS)
    counts = sessions.datapath.maps["lb_open"]
    for index, open_now in zip(offered, (500, 290, 95), strict=True):
        counts.update(pack_index(index), pack_open(open_now))
    chosen = Counter(sessions.ask() for _ in range(30))
    assert chosen[offered[0]] > chosen[offered[1]] + chosen[offered[2]]


def test_affinity_finds_backends_with_weights(sessions: Sessions):
    offered = weigh(sessions, RANDOM)
    sessions.change(sessions.frontend)
    sessions.keep(offered[2])
    assert {sessions.ask() for _ in range(20)} == {offered[2]}

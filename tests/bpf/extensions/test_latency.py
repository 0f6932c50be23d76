# SPDX-License-Identifier: Apache-2.0
"""The scheduler lowest-latency: what is measured, at tc and at the sockets, and what is chosen."""

import time
from collections import Counter
from itertools import repeat

import pytest

from ebpflb.dataplane.layout.enums import DescFlag, NetnsFlag, SchedulerCode
from ebpflb.dataplane.layout.records import pack_index, pack_open
from ebpflb.dataplane.layout.structs import LbLatency
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.sessions import Sessions
from tests.bpf.services.chance import is_likely

FEW = 4
TICK = 1 << 30
FLAGS = DescFlag.LB_DESC_COUNTS_OPEN | DescFlag.LB_DESC_TIMED
# No answer takes longer in a test, in us.
LONG = 10_000_000


@pytest.fixture
def sessions(datapath: Datapath, kind: Kind) -> Sessions:
    return made(datapath, kind)


def made(datapath: Datapath, kind: Kind) -> Sessions:
    """A ClusterIP with this scheduler."""
    found = Sessions(datapath, kind)
    found.serve(found.backends[:FEW])
    fields = {"affinity_timeout": 0, "scheduler": SchedulerCode["LB_SCHEDULER_LOWEST_LATENCY"]}
    found.change(found.frontend, **fields, flags=FLAGS)
    return found


def say(sessions: Sessions, place: int, average: int, ticks_ago: int = 0, opened: int = 0) -> None:
    index = pack_index(sessions.backends[place])
    measured = (time.monotonic_ns() // TICK - ticks_ago) % (1 << 32)
    sessions.datapath.maps["lb_latencies"].update(index, bytes(LbLatency(average, measured)))
    sessions.datapath.maps["lb_open"].update(index, pack_open(opened))


def average(sessions: Sessions, backend: int) -> int:
    value = sessions.datapath.maps["lb_latencies"].lookup(pack_index(backend))
    assert value
    return int(LbLatency.from_buffer_copy(value).average)


def keep(sessions: Sessions, *latencies: int, opened: tuple[int, ...] = ()) -> list[int]:
    """Ask many times, with the same latencies and counts each time; how often each was chosen."""
    chosen: Counter[int] = Counter()
    for _ in range(240):
        for place, each in enumerate(latencies):
            say(sessions, place, each, opened=opened[place] if opened else 0)
        chosen[sessions.ask()] += 1
    return [chosen[each] for each in sessions.backends[:FEW]]


def test_of_two_the_faster_one_is_taken(sessions: Sessions):
    shares = keep(sessions, 100, 200, 400, 800)
    # Each wins against those that are slower than itself.
    expected = [2 * (FEW - 1 - place) / (FEW * (FEW - 1)) for place in range(FEW)]
    assert all(map(is_likely, shares, repeat(240), expected))


def test_open_connections_count_as_much_as_latency(sessions: Sessions):
    # 10 ms without any other are less than 100 us behind 999 others.
    shares = keep(sessions, 100, 10_000, 100, 100, opened=(999, 0, 999, 999))
    assert shares[1] == max(shares)
    assert is_likely(shares[1], 240, 0.5)


def test_what_was_measured_long_ago_is_forgotten(sessions: Sessions):
    # After 80 ticks, which are 10 halvings, it is half of the others.
    chosen: Counter[int] = Counter()
    for _ in range(60):
        say(sessions, 0, 500 << 10, ticks_ago=80)
        for place in range(1, FEW):
            say(sessions, place, 1000)
        chosen[sessions.ask()] += 1
    assert is_likely(chosen[sessions.backends[0]], 60, 0.5)


def test_what_another_cpu_has_just_measured_counts(sessions: Sessions):
    chosen: Counter[int] = Counter()
    for _ in range(60):
        say(sessions, 0, 500_000, ticks_ago=-2)
        for place in range(1, FEW):
            say(sessions, place, 1000)
        chosen[sessions.ask()] += 1
    assert chosen[sessions.backends[0]] == 0


def test_unknown_ones_are_spread_by_their_connections(sessions: Sessions):
    chosen = Counter(sessions.ask() for _ in range(FEW * 50))
    assert min(chosen[each] for each in sessions.backends[:FEW]) > 30


def test_the_answer_to_a_syn_is_timed(datapath: Datapath, tcp: Kind):
    sessions = made(datapath, tcp)
    source = sessions.source()
    sent = datapath.run("lb_pod_ingress", tcp.frame(source, sessions.frontend))
    backend = sessions.chosen(sent.packet)
    assert average(sessions, backend) == 0
    end = End(tcp.net.remote, 8000 + sessions.backends.index(backend))
    datapath.run("lb_pod_egress", tcp.frame(end, source, "SA"))
    first = average(sessions, backend)
    assert 0 < first < LONG
    # A repeated answer is no measurement.
    datapath.run("lb_pod_egress", tcp.frame(end, source, "SA"))
    assert average(sessions, backend) == first


def test_nothing_is_timed_for_other_schedulers(datapath: Datapath, tcp: Kind):
    sessions = made(datapath, tcp)
    sessions.change(sessions.frontend, affinity_timeout=0, flags=DescFlag.LB_DESC_COUNTS_OPEN)
    source = sessions.source()
    sent = datapath.run("lb_pod_ingress", tcp.frame(source, sessions.frontend))
    backend = sessions.chosen(sent.packet)
    end = End(tcp.net.remote, 8000 + sessions.backends.index(backend))
    datapath.run("lb_pod_egress", tcp.frame(end, source, "SA"))
    assert average(sessions, backend) == 0


def test_sockets_choose_the_faster_one_too(sessions: Sessions, asker: Asker, node: Node):
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    chosen = set()
    for _ in range(40):
        for place in range(FEW):
            say(sessions, place, 100_000 if place == 0 else 10)
        found = asker.connect(sessions.frontend, sessions.kind.proto)
        assert isinstance(found, End)
        chosen.add(sessions.backends[found.port - 8000])
    assert sessions.backends[0] not in chosen

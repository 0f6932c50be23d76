# SPDX-License-Identifier: Apache-2.0
"""Which endpoints are ejected, for how long, and how they return."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.address import Protocol, SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import (
    MOST_WITNESSES,
    PROBE_SECONDS,
    TRIAL_COUNT,
    EjectionChange,
    Ejections,
    EjectionState,
    FailureCount,
    Times,
)
from ebpflb.model.extensions.annotated import Annotated
from ebpflb.model.plan import plan_service
from ebpflb.model.service import ServiceName, TrafficPolicy
from ebpflb.words.scheduler import Scheduler
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
)

WEB = port_name()
ONE, TWO, THREE, FOUR, FIVE = FIRST = [
    SocketAddress(address(f"10.1.0.{n}"), 8080) for n in range(1, 6)
]
N = 3
PORT = service_port()


@dataclass
class Bench:
    """Ejections, and a dataplane that counts as the programs do and applies everything at once."""

    endpoints: list[SocketAddress] = field(default_factory=lambda: FIRST[:4])
    times: Times = field(default_factory=lambda: Times(10, 50))
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.ejections = Ejections(N, self.times)
        self.counts: dict[SocketAddress, tuple[int, bool]] = {}
        self.clients = self.witnesses = 1

    def fail(self, place: SocketAddress, times: int = 1) -> None:
        in_a_row, _ = self.counts.get(place, (0, False))
        self.counts[place] = in_a_row + times, self.ejection(place) is EjectionState.TRIAL

    def succeed(self, place: SocketAddress) -> None:
        self.counts[place] = 0, self.ejection(place) is EjectionState.TRIAL

    def take(self, place: SocketAddress) -> None:
        self.counts[place] = self.counts[place][0], True

    def states(self) -> dict[SocketAddress, EjectionState]:
        return dict(self.ejections.watch(PORT).states(self.endpoints))

    def ejection(self, place: SocketAddress) -> EjectionState:
        return self.states().get(place, EjectionState.WATCHED)

    def ejected(self) -> list[SocketAddress]:
        return [place for place, each in self.states().items() if each is EjectionState.EJECTED]

    def look(self, seconds: float = 1.0, *sets: list[SocketAddress]) -> list[EjectionChange]:
        self.now += seconds
        before = self.states()
        readings = {
            place: FailureCount(
                *self.counts.get(place, (0, False)),
                before.get(place) is EjectionState.TRIAL,
                self.witnesses,
                self.clients,
            )
            for place in self.endpoints
        }
        changes = self.ejections.observe(WEB, N, sets or [self.endpoints], readings, self.now)
        for place, each in self.states().items():
            if each is EjectionState.TRIAL and before.get(place) is not EjectionState.TRIAL:
                self.counts[place] = TRIAL_COUNT, False
        return changes


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_fewer_failures_in_a_row_than_the_threshold_change_nothing(bench: Bench):
    bench.fail(ONE, N - 1)
    bench.fail(TWO, N - 1)
    assert bench.look() == []
    assert bench.states() == {}


def test_at_the_threshold_an_endpoint_is_ejected(bench: Bench):
    bench.fail(ONE, N)
    assert bench.look() == [EjectionChange(WEB, ONE, 10, N, 1)]
    assert bench.ejected() == [ONE]
    assert list(bench.ejections.ports) == [WEB]


def test_after_its_time_it_is_on_trial_and_stays_so_without_traffic(bench: Bench):
    bench.fail(ONE, N)
    bench.look()
    bench.look(9.9)
    assert bench.ejection(ONE) is EjectionState.EJECTED
    assert bench.look(0.1) == []
    assert bench.ejection(ONE) is EjectionState.TRIAL
    assert bench.look(10_000) == []
    assert bench.ejection(ONE) is EjectionState.TRIAL


def on_trial(bench: Bench, place: SocketAddress = ONE) -> None:
    bench.fail(place, N)
    bench.look()
    bench.look(10)


def test_a_success_brings_it_back_fully(bench: Bench):
    on_trial(bench)
    bench.succeed(ONE)
    assert bench.look() == [EjectionChange(WEB, ONE, 0)]
    assert bench.states() == {}
    assert not bench.ejections.ports
    bench.fail(ONE, N)
    assert bench.look() == [EjectionChange(WEB, ONE, 10, N, 1)]


def test_each_failed_trial_doubles_the_time_up_to_the_longest(bench: Bench):
    bench.fail(ONE, N)
    seconds = [change.seconds for change in bench.look()]
    for _ in range(4):
        bench.look(seconds[-1])
        bench.fail(ONE)
        seconds += [change.seconds for change in bench.look()]
    assert seconds == [10, 20, 40, 50, 50]


def test_a_trial_that_comes_to_nothing_is_repeated_after_as_long(bench: Bench):
    on_trial(bench)
    bench.take(ONE)
    assert bench.look() == []
    assert bench.look(PROBE_SECONDS - 0.1) == []
    assert bench.look(0.1) == [EjectionChange(WEB, ONE, 10, N + 1, 1)]
    bench.look(10)
    bench.take(ONE)
    assert bench.look() == []


@pytest.mark.parametrize(("clients", "witnesses"), [(1, 1), (2, 2), (3, 3), (100, 3)])
def test_enough_clients_must_have_seen_it_fail(bench: Bench, clients: int, witnesses: int):
    bench.clients, bench.witnesses = clients, witnesses - 1
    bench.fail(ONE, 10 * N)
    assert bench.look() == []
    bench.witnesses = witnesses
    assert bench.look() == [EjectionChange(WEB, ONE, 10, 10 * N, 1)]


def test_what_few_clients_said_no_longer_counts_when_there_are_more(bench: Bench):
    bench.fail(ONE, N)
    bench.look()
    bench.clients = MOST_WITNESSES
    assert bench.look() == [EjectionChange(WEB, ONE, 0)]


def test_a_client_alone_fails_no_trial(bench: Bench):
    bench.clients = bench.witnesses = MOST_WITNESSES
    on_trial(bench)
    bench.fail(ONE)
    bench.witnesses = 1
    assert bench.look() == []
    assert bench.look(PROBE_SECONDS) == [EjectionChange(WEB, ONE, 10, N + 1, 1)]
    assert bench.look(9) == []
    assert bench.look() == []
    bench.succeed(ONE)
    assert bench.look() == [EjectionChange(WEB, ONE, 0)]


def test_what_was_counted_before_the_trial_is_in_force_does_not_count(bench: Bench):
    on_trial(bench)
    readings = {ONE: FailureCount(N, tried=True), TWO: FailureCount(0)}
    assert bench.ejections.observe(WEB, N, [FIRST[:4]], readings, bench.now + 100) == []
    assert bench.ejections.observe(WEB, N, [FIRST[:4]], {}, bench.now + 200) == []
    assert bench.ejection(ONE) is EjectionState.TRIAL


def test_of_many_the_worst_half_is_ejected(bench: Bench):
    for number, place in enumerate(bench.endpoints):
        bench.fail(place, N + number)
    assert [change.place for change in bench.look()] == [FOUR, THREE]
    assert bench.look() == []


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_at_most_half_are_left_out(count: int, most: int):
    bench = Bench(FIRST[:count])
    for place in bench.endpoints:
        bench.fail(place, N)
    bench.look()
    assert len(bench.ejected()) == most


def test_an_endpoint_on_trial_counts_among_those_left_out():
    bench = Bench([ONE, TWO])
    on_trial(bench)
    bench.fail(TWO, N)
    assert bench.look() == []
    bench.succeed(ONE)
    assert [change.place for change in bench.look()] == [ONE, TWO]


def six_due(bench: Bench) -> list[SocketAddress]:
    """Of twelve endpoints six are ejected, and their time is over."""
    bench.endpoints = [SocketAddress(address(f"10.1.0.{number}"), 8080) for number in range(1, 13)]
    for place in bench.endpoints[:6]:
        bench.fail(place, N)
    bench.look()
    bench.look(10)
    return bench.endpoints[:6]


def on_trial_now(bench: Bench) -> set[SocketAddress]:
    return {place for place, each in bench.states().items() if each is EjectionState.TRIAL}


def test_few_are_on_trial_at_a_time(bench: Bench):
    first, second, third, fourth, *_ = six_due(bench)
    assert on_trial_now(bench) == {first, second}
    assert len(bench.ejected()) == 4
    bench.succeed(first)
    bench.fail(second)
    assert [(change.place, change.seconds) for change in bench.look()] == [(first, 0), (second, 20)]
    assert on_trial_now(bench) == {third, fourth}


def test_who_gets_no_connection_lets_others_have_their_trial(bench: Bench):
    *_, fifth, sixth = waiting = six_due(bench)
    bench.take(waiting[0])
    assert bench.look(PROBE_SECONDS - 1) == []
    assert on_trial_now(bench) == set(waiting[:2])
    assert bench.look() == []
    assert on_trial_now(bench) == {waiting[0], waiting[2]}
    bench.look(PROBE_SECONDS)
    assert on_trial_now(bench) == {waiting[3], fifth}
    bench.look(PROBE_SECONDS)
    assert on_trial_now(bench) == {sixth, waiting[1]}


def test_who_gets_no_connection_stays_on_trial_if_nobody_waits(bench: Bench):
    on_trial(bench)
    for _ in range(3):
        bench.look(PROBE_SECONDS)
        assert on_trial_now(bench) == {ONE}


def test_room_counts_in_each_set_of_endpoints(bench: Bench):
    bench.fail(ONE, N)
    assert bench.look(1, FIRST[:4], [ONE]) == []
    assert [change.place for change in bench.look(1, FIRST[:4], [ONE, TWO])] == [ONE]


def test_if_endpoints_go_the_best_of_those_left_out_come_back(bench: Bench):
    bench.fail(ONE, N)
    bench.fail(TWO, N + 1)
    bench.look()
    bench.endpoints = [ONE, TWO]
    # At once, before anybody has looked.
    assert bench.ejected() == [TWO]
    assert bench.look() == [EjectionChange(WEB, ONE, 0)]
    assert bench.ejected() == [TWO]


def test_an_endpoint_that_has_gone_is_no_longer_ejected(bench: Bench):
    bench.fail(ONE, N)
    bench.look()
    bench.endpoints = FIRST[1:4]
    assert bench.look() == [EjectionChange(WEB, ONE, 0)]
    assert not bench.ejections.ports


def test_without_endpoints_nothing_happens():
    bench = Bench([])
    assert bench.look() == []


@pytest.mark.parametrize(
    ("protocol", "own", "default", "threshold"),
    [
        (Protocol.TCP, None, 0, 0),
        (Protocol.TCP, None, 5, 5),
        (Protocol.TCP, 0, 5, 0),
        (Protocol.TCP, 7, 0, 7),
        (Protocol.SCTP, None, 5, 5),
        (Protocol.UDP, 7, 5, 0),
    ],
)
def test_the_threshold(protocol, own, default, threshold):
    port = service_port(name=port_name(protocol=protocol), annotated=Annotated(ejection=own))
    ejections = Ejections(default)
    assert ejections.threshold(port) == threshold
    assert ejections.watch(port).is_on == bool(threshold)


# As users see it


ENDPOINTS = [endpoint(f"10.1.0.{n}", NODE if n == 1 else OTHER_NODE) for n in range(1, 5)]


def make_changes(**fields) -> Changes:
    changes = Changes(NODE, ejections=Ejections(N))
    changes.set(service("web", service_port(**fields)))
    changes.set(endpoint_slice("web-1", *ENDPOINTS))
    changes.set(node())
    changes.take()
    return changes


def test_the_plan_leaves_an_ejected_endpoint_out_and_keeps_it():
    changes = make_changes()
    assert {each.ejection for each in planned(changes).local.backends} == {EjectionState.WATCHED}
    assert changes.observe_failures({WEB: {TWO: FailureCount(N)}}, 1.0)
    assert changes.take() == {ServiceName("default", "web")}
    frontend = planned(changes)
    assert [SocketAddress(*each[:2]) for each in frontend.local.backends] == [ONE, THREE, FOUR]
    assert [(SocketAddress(*each[:2]), each.ejection) for each in frontend.ejected] == [
        (TWO, EjectionState.EJECTED)
    ]
    changes.observe_failures({WEB: {TWO: FailureCount(N)}}, 11.0)
    ejection_states = {
        SocketAddress(*each[:2]): each.ejection for each in planned(changes).local.backends
    }
    assert ejection_states[TWO] is EjectionState.TRIAL
    assert not planned(changes).ejected


def planned(changes: Changes):
    (frontend,) = changes.plan(ServiceName("default", "web"))
    return frontend


@pytest.mark.parametrize(
    "keeps", [{"affinity_timeout": 60}, {"scheduler": Scheduler.SOURCE_HASH}, {}]
)
def test_where_clients_stay_with_an_endpoint_only_its_own_have_a_say(keeps: dict[str, Any]):
    changes = make_changes()
    port = service_port(affinity_timeout=keeps.get("affinity_timeout", 0))
    changes.set(service("web", port, scheduler=keeps.get("scheduler")))
    reading = FailureCount(N, witnesses=1, clients=9, regulars=1)
    assert bool(changes.observe_failures({WEB: {TWO: reading}}, 1.0)) == bool(keeps)


def test_the_only_endpoint_of_this_node_stays_under_policy_local():
    changes = make_changes(internal_policy=TrafficPolicy.LOCAL)
    assert changes.observe_failures({WEB: {ONE: FailureCount(N)}}, 1.0) == []
    assert changes.take() == set()


def test_a_port_without_failures_enough_is_not_looked_at():
    changes = make_changes()
    assert changes.observe_failures({WEB: {TWO: FailureCount(N - 1)}}, 1.0) == []
    assert changes.take() == set()


def test_what_is_switched_off_or_gone_is_forgotten():
    changes = make_changes()
    watching = [changes.has_ejection]
    changes.observe_failures({WEB: {TWO: FailureCount(N)}}, 1.0)
    changes.set(service("web", ejection=0))
    watching.append(changes.has_ejection)
    assert watching == [True, False]
    assert not planned(changes).ejected
    assert {each.ejection for each in planned(changes).local.backends} == {EjectionState.UNWATCHED}
    assert changes.observe_failures({}, 2.0) == [EjectionChange(WEB, TWO, 0)]
    assert not changes.ejections.ports
    assert changes.observe_failures({port_name(service="other"): {TWO: FailureCount(N)}}, 3.0) == []


def test_without_ejection_the_plan_is_as_ever():
    ports = service("web", ejection=N)
    pieces = [endpoint_slice("web-1", *ENDPOINTS)]
    (frontend,) = plan_service(ports, pieces, node())
    assert {each.ejection for each in frontend.local.backends} == {EjectionState.UNWATCHED}


# Whatever happens


@given(st.data())
def test_never_more_than_half_and_everything_comes_back(drawn: st.DataObject):
    bench = Bench(FIRST[: drawn.draw(st.integers(1, 5))])
    last: dict[SocketAddress, float] = {}
    for _ in range(drawn.draw(st.integers(1, 40))):
        known = st.sampled_from(bench.endpoints)
        for place in drawn.draw(st.lists(known, max_size=5)):
            bench.fail(place, drawn.draw(st.integers(1, N)))
        for place in drawn.draw(st.lists(known, max_size=2)):
            bench.succeed(place)
        if drawn.draw(st.booleans()):
            bench.endpoints = FIRST[: drawn.draw(st.integers(1, 5))]
        assert len(bench.ejected()) <= len(bench.endpoints) // 2
        for change in bench.look(drawn.draw(st.sampled_from([1.0, 5.0, 30.0]))):
            doubled = min(2 * last.get(change.place, 5.0), 50.0)
            assert change.seconds in (0, 10, last.get(change.place), doubled)
            last[change.place] = change.seconds or 5.0
        assert len(bench.states()) <= len(bench.endpoints) // 2
    for _ in range(12):
        for place in bench.endpoints:
            bench.succeed(place)
        bench.look(60)
    assert not bench.ejections.ports

# SPDX-License-Identifier: Apache-2.0
"""An ejected endpoint is removed from the ranges and keeps its index; failures by endpoint."""

import time
from dataclasses import replace
from itertools import groupby

import pytest

from ebpflb.dataplane.explain.choice import Hashed, choose
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import ClientSide
from ebpflb.dataplane.layout.enums import BackendFlag
from ebpflb.dataplane.layout.records import ejection_of, pack_failures
from ebpflb.dataplane.layout.structs import LbAddr, LbAffinity, LbClient, LbClientKey, LbFailures
from ebpflb.dataplane.view.dump import used_entries
from ebpflb.dataplane.view.rates import TrafficSampler
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.address import SocketAddress, parse_address
from ebpflb.model.ejection import TRIAL_COUNT, EjectionState, FailureCount
from ebpflb.model.plan import Choice, Frontend
from tests.bpf.harness.numbers import u32
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.programs import backend, look_up
from tests.unit.dataplane.world import World

USABLE, SERVING = BackendFlag.LB_BACKEND_USABLE, BackendFlag.LB_BACKEND_SERVING
WATCHED, EJECTED = BackendFlag.LB_BACKEND_WATCHED, BackendFlag.LB_BACKEND_EJECTED
TRIAL = BackendFlag.LB_BACKEND_TRIAL
FIRST, SECOND = "10.1.0.1", "10.1.0.2"
BOTH = backends(FIRST, SECOND).backends
PLACES = [SocketAddress(*each[:2]) for each in BOTH]
WEB = named("web")


def web(
    first: EjectionState = EjectionState.WATCHED, second: EjectionState = EjectionState.WATCHED
) -> Frontend:
    """A Service with two backends, as the model has it."""
    both = [each._replace(ejection=s) for each, s in zip(BOTH, (first, second), strict=True)]
    offered = Choice(
        tuple(each for each in both if each.ejection is not EjectionState.EJECTED),
        backends(FIRST).if_empty,
    )
    gone = tuple(each for each in both if each.ejection is EjectionState.EJECTED)
    return frontend(choice=offered, ejected=gone)


@pytest.fixture
def world() -> World:
    made = World()
    change(made, web())
    return made


def change(world: World, *frontends: Frontend) -> None:
    world.sync.resync(by_service(*frontends))


def index_of(world: World, address: str) -> int:
    wanted = backends(address).backends[0].address
    at = [backend(world.maps, index) for index in range(4)]
    (found,) = (index for index, each in enumerate(at) if bytes(each.addr) == wanted)
    return found


def flags(world: World, index: int) -> int:
    return int(backend(world.maps, index).flags)


def counted(world: World, index: int) -> tuple[int, bool]:
    found = LbFailures.from_buffer_copy(world.maps["lb_failures"].lookup(u32(index)) or b"")
    return found.in_a_row, bool(found.tried)


def count(
    world: World, index: int, in_a_row: int, tried: int = 0, failed: int = 1, busy: float = 60
) -> None:
    """busy: for how many seconds its trial's connection may still have a result."""
    busy_until = time.monotonic_ns() + int(busy * 1e9)
    value = LbFailures(
        in_a_row=in_a_row, failed=failed, tried=tried, busy_until=busy_until if tried else 0
    )
    world.maps["lb_failures"].update(u32(index), bytes(value))


def offered(world: World) -> list[int]:
    found = look_up(world.maps, web().key)
    assert found
    return sorted(found.backends)


def test_watched_backends_are_flagged(world: World):
    assert {flags(world, index) for index in offered(world)} == {USABLE | WATCHED}


def test_an_ejected_backend_is_in_no_range_and_comes_back_as_the_same(world: World):
    index, other = index_of(world, FIRST), index_of(world, SECOND)
    before = backend(world.maps, index)
    change(world, web(EjectionState.EJECTED))
    assert offered(world) == [other]
    assert flags(world, index) == SERVING | WATCHED | EJECTED
    assert flags(world, other) == USABLE | WATCHED
    change(world, web(EjectionState.TRIAL))
    assert sorted(offered(world)) == sorted([index, other])
    assert flags(world, index) == USABLE | WATCHED | TRIAL
    change(world, web())
    assert flags(world, index) == USABLE | WATCHED
    assert backend(world.maps, index).serial == before.serial


def test_a_trial_begins_with_its_own_count(world: World):
    index = index_of(world, FIRST)
    count(world, index, 7)
    change(world, web(EjectionState.EJECTED))
    assert counted(world, index) == (7, False)
    count(world, index, 7, 1)
    change(world, web(EjectionState.TRIAL))
    assert counted(world, index) == (TRIAL_COUNT, False)


def may_get(world: World, index: int) -> str:
    """How many new connections programs let to a backend."""
    if index not in offered(world):
        return "none"
    in_a_row, is_tried = counted(world, index)
    if not flags(world, index) & TRIAL or not in_a_row:
        return "any"
    return "none" if is_tried else "one"


@pytest.mark.parametrize(
    ("before", "counts", "after", "allowed"),
    [
        (EjectionState.WATCHED, (7, 0), EjectionState.EJECTED, ["any", "none"]),
        (EjectionState.EJECTED, (7, 1), EjectionState.TRIAL, ["none", "one"]),
        (EjectionState.TRIAL, (2, 1), EjectionState.EJECTED, ["none"]),
        (EjectionState.TRIAL, (1, 0), EjectionState.EJECTED, ["one", "none"]),
        (EjectionState.TRIAL, (0, 1), EjectionState.WATCHED, ["any"]),
    ],
)
def test_an_agent_that_dies_at_any_write_leaves_the_old_or_the_new(
    world: World,
    before: EjectionState,
    counts: tuple[int, int],
    after: EjectionState,
    allowed: list[str],
):
    index = index_of(world, FIRST)
    change(world, web(before))
    count(world, index, *counts)
    seen = [may_get(world, index)]
    world.watch.inspect = lambda: seen.append(may_get(world, index))
    change(world, web(after))
    assert [each for each, _ in groupby(seen)] == allowed


def test_what_was_counted_before_watching_began_is_gone(world: World):
    index = index_of(world, FIRST)
    change(world, web(EjectionState.UNWATCHED, EjectionState.UNWATCHED))
    assert flags(world, index) == USABLE
    count(world, index, 7)
    change(world, web())
    assert counted(world, index) == (0, False)


def test_a_new_endpoint_does_not_get_the_count_of_the_last_one(world: World):
    count(world, index_of(world, FIRST), 7)
    index = index_of(world, FIRST)
    change(world)
    world.now += 10
    world.sync.collect()
    third = web()
    change(world, replace(third, local=backends_watched("10.1.0.3"), others=third.others))
    assert {counted(world, each) for each in range(3)} == {(0, False)}
    assert index in range(3)


def backends_watched(address: str) -> Choice:
    choice = backends(address)
    watched = tuple(each._replace(ejection=EjectionState.WATCHED) for each in choice.backends)
    return choice._replace(backends=watched)


def test_an_agent_that_starts_again_brings_all_back_with_their_counts(world: World):
    index = index_of(world, FIRST)
    change(world, web(EjectionState.EJECTED))
    count(world, index, 7)
    world.sync = world.restarted()
    world.sync.load()
    change(world, web())
    assert index in offered(world)
    assert flags(world, index) == USABLE | WATCHED
    assert counted(world, index) == (7, False)


def test_a_backend_that_goes_while_it_is_ejected_leaves_no_flags(world: World):
    index = index_of(world, FIRST)
    change(world, web(EjectionState.EJECTED))
    change(world, frontend(choice=backends_watched(SECOND)))
    assert flags(world, index) == 0


# What is read


def test_only_endpoints_with_failures_are_read_and_those_asked_for(world: World):
    assert world.sync.failures(()) == {}
    count(world, index_of(world, FIRST), 2)
    assert world.sync.failures(()) == {WEB: {PLACES[0]: FailureCount(2, clients=0, regulars=0)}}
    assert world.sync.failures([WEB, named("other")]) == {
        WEB: {
            PLACES[0]: FailureCount(2, clients=0, regulars=0),
            PLACES[1]: FailureCount(0, witnesses=0, clients=0, regulars=0),
        }
    }


def test_a_reading_says_what_is_in_force(world: World):
    change(world, web(EjectionState.EJECTED))
    change(world, web(EjectionState.TRIAL))
    index = index_of(world, FIRST)
    assert world.sync.failures(()) == {
        WEB: {PLACES[0]: FailureCount(1, on_trial=True, witnesses=0, clients=0, regulars=0)}
    }
    count(world, index, 0, 1, failed=0)
    assert world.sync.failures(()) == {
        WEB: {
            PLACES[0]: FailureCount(
                0, tried=True, on_trial=True, witnesses=0, clients=0, regulars=0
            )
        }
    }


def test_a_reading_says_how_many_clients_have_failed_and_how_many_there_are(world: World):
    index = index_of(world, FIRST)
    count(world, index, 7, failed=0b10110)
    record, now = backend(world.maps, index), time.monotonic_ns()
    for number, (service, ago, of, serial) in enumerate(
        [
            (record.service, 0, index, record.serial),
            (record.service, 299, index, record.serial),
            (record.service, 301, index, record.serial),
            (record.service, 0, index, record.serial + 1),
            (record.service, 0, index + 1, record.serial),
            (99, 0, index + 1, record.serial),
        ]
    ):
        for client in (parse_address(f"10.1.0.{number}"), parse_address(f"fd00::{number}")):
            key = LbClientKey(service=service, client=LbAddr.of(client))
            value = LbClient(established=now - ago * 10**9, backend=of, serial=serial)
            world.maps["lb_clients"].update(bytes(key), bytes(value))
    (reading,) = world.sync.failures(())[WEB].values()
    assert (reading.witnesses, reading.clients, reading.regulars) == (3, 4, 4)


def test_what_nobody_watches_is_not_read(world: World):
    index = index_of(world, FIRST)
    change(world, web(EjectionState.UNWATCHED, EjectionState.UNWATCHED))
    count(world, index, 7)
    assert world.sync.failures([WEB]) == {}


@pytest.mark.parametrize("ejection", EjectionState)
def test_ejection_states_are_flags(ejection: EjectionState, world: World):
    index = index_of(world, FIRST)
    change(world, web(ejection))
    assert ejection_of(flags(world, index)) is ejection
    assert LbFailures.from_buffer_copy(pack_failures(3)).in_a_row == 3


# What is shown


def test_an_ejected_backend_is_shown_although_nobody_uses_it(world: World):
    change(world, web(EjectionState.EJECTED))
    (found,) = read_frontends(world.maps)
    (gone,) = found.draining
    assert (gone.backend.address, gone.backend.ejection, gone.usable) == (
        PLACES[0].address,
        EjectionState.EJECTED,
        False,
    )
    (traffic,) = TrafficSampler(world.maps).sample().services.values()
    ejection_states = [traffic.backends[each].ejection for each in PLACES]
    assert ejection_states == [EjectionState.EJECTED, EjectionState.WATCHED]
    assert used_entries(world.maps, "lb_backends") == 2


CLIENT = parse_address("10.1.0.9")


def chances(world: World, bit: int = 1) -> list[float]:
    """Of the backends, the first one's index first. bit: of the client."""
    lookups = Lookups(world.maps)
    desc = lookups.frontend_lookup(web().key)
    assert desc
    client = Hashed(CLIENT, None, bit)
    found = choose(lookups, desc, ClientSide.THIS_NODE, CLIENT, client).candidates
    return [each.chance for each in sorted(found, key=lambda each: each.backend.record.socket)]


def test_explain_knows_whether_a_backend_on_trial_may_be_chosen(world: World):
    index, other = index_of(world, FIRST), index_of(world, SECOND)
    change(world, web(EjectionState.EJECTED))
    change(world, web(EjectionState.TRIAL))
    assert chances(world) == [0.5, 0.5]
    assert chances(world, 0) == [0, 1]
    count(world, index, 1, 1)
    assert chances(world) == [0, 1]
    assert chances(world, 2) == [0, 1]
    count(world, index, 1, 1, busy=0)
    assert chances(world) == [0, 1]
    assert chances(world, 2) == [0.5, 0.5]
    count(world, index, 0, 1)
    assert chances(world) == [0.5, 0.5]
    count(world, index, 1, 1)
    change(world, web(EjectionState.TRIAL, EjectionState.TRIAL))
    count(world, other, 1, 1)
    assert chances(world) == [0.5, 0.5]


def test_explain_does_not_keep_a_client_at_a_backend_on_trial(world: World):
    index = index_of(world, FIRST)
    change(world, replace(web(EjectionState.TRIAL), affinity_timeout=3600))
    lookups = Lookups(world.maps)
    desc = lookups.frontend_lookup(web().key)
    assert desc
    serial = backend(world.maps, index).serial
    entry = LbAffinity(backend=index, serial=serial, last_used=time.monotonic_ns())
    key = LbClientKey(service=desc.service, client=LbAddr.of(CLIENT))
    world.maps["lb_affinity"].update(bytes(key), bytes(entry))
    count(world, index, 0)
    assert sorted(chances(world)) == [0, 1]
    count(world, index, 1, 1)
    assert chances(world) == [0, 1]

# SPDX-License-Identifier: Apache-2.0
"""The counts of open connections approach the contents of the flow tables, by halving the
difference.
"""

from collections.abc import Callable

import pytest

from ebpflb.dataplane.flows.open_connections import correct_open_connections
from ebpflb.dataplane.layout.records import BackendRecord, pack_index, pack_open, unpack_open
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.world import World

PODS = ("10.1.0.1", "10.1.0.2", "10.2.0.1")
LEAST = {"scheduler": Scheduler.LEAST_CONNECTIONS}


@pytest.fixture
def world() -> World:
    """A Service with three pods at the indices 0 to 2."""
    made = World()
    made.change(by_service(frontend(choice=backends(*PODS), **LEAST)))
    return made


def serial(world: World, index: int) -> int:
    return BackendRecord.unpack(world.maps["lb_backends"].lookup(pack_index(index)) or b"").serial


def count(world: World, index: int = 0) -> int:
    return unpack_open(world.maps["lb_open"].lookup(pack_index(index)) or b"")


def put(world: World, index: int, number: int) -> None:
    world.maps["lb_open"].update(pack_index(index), pack_open(number))


def used(world: World, *numbers: int) -> Callable[[], dict[tuple[int, int], int]]:
    return lambda: {(i, serial(world, i)): number for i, number in enumerate(numbers)}


@pytest.mark.parametrize(
    ("before", "uses", "after"),
    [(100, 0, 50), (0, 7, 4), (1, 0, 0), (0, 1, 1), (-3, 0, -1), (5, 5, 5)],
)
def test_a_step_goes_half_of_the_way(world, before, uses, after):
    put(world, 0, before)
    correct_open_connections(world.maps, used(world, uses))
    assert count(world) == after


def test_steps_arrive(world):
    put(world, 0, 1000)
    steps = 0
    while correct_open_connections(world.maps, used(world, 30)):
        steps += 1
    assert (count(world), steps) == (30, 10)


def test_what_changes_meanwhile_is_not_counted_twice(world):
    """Ten connections end while flows are counted: any number between is right."""
    put(world, 0, 20)

    def counted():
        put(world, 0, 10)
        return used(world, 15)()

    assert correct_open_connections(world.maps, counted) == 0
    assert count(world) == 10


def test_flows_of_an_earlier_backend_with_the_index_do_not_count(world):
    put(world, 0, 8)
    correct_open_connections(world.maps, lambda: {(0, serial(world, 0) + 1): 8})
    assert count(world) == 4


def test_services_with_another_scheduler_are_left_alone(world):
    other = frontend("10.96.0.2", backends("10.1.0.9"), service=named("other"))
    world.change({**world.state, **by_service(other)})
    put(world, 3, 50)
    correct_open_connections(world.maps, dict)
    assert count(world, 3) == 50


def test_nobody_counts_flows_for_nothing():
    world = World()
    world.change(by_service(frontend(choice=backends(*PODS))))

    def never():
        raise AssertionError

    assert correct_open_connections(world.maps, never) == 0


def test_a_new_backend_begins_with_the_mean_of_the_others(world):
    for index, number in enumerate((10, 20, 33)):
        put(world, index, number)
    world.change(by_service(frontend(choice=backends(*PODS, "10.1.0.4"), **LEAST)))
    assert [count(world, index) for index in range(4)] == [10, 20, 33, 21]


def test_backends_of_a_new_service_begin_with_none(world):
    put(world, 3, 99)
    new = frontend("10.96.0.2", backends("10.1.0.9"), service=named("other"), **LEAST)
    world.change({**world.state, **by_service(new)})
    assert count(world, 3) == 0

# SPDX-License-Identifier: Apache-2.0
"""Source ranges change atomically with their frontend, and are deleted with their last user."""

from errno import E2BIG

import pytest

from ebpflb.dataplane.layout.capacity import Sizes, sizes_for
from ebpflb.dataplane.layout.structs import LbSourceRange
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName
from ebpflb.model.source_ranges import Prefix, Prefixes
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import ALLOWED, backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import look_up
from tests.unit.dataplane.world import World
from tests.unit.dataplane.written import assert_tidy, written_by_restart

WEB = ServiceName("default", "web")
ONE, BOTH = ALLOWED[:1], ALLOWED
PODS = backends("10.1.0.1")
LAST = (1 << 32) - 1


@pytest.fixture
def world() -> World:
    return World()


def limited(prefixes: Prefixes, text: str = "10.96.0.1", **fields: object) -> Frontend:
    return frontend(text, PODS, allowed_sources=prefixes, **fields)


def entries(world: World) -> list[LbSourceRange]:
    return [LbSourceRange.from_buffer_copy(each) for each, _ in world.maps["lb_src_ranges"].items()]


def written(world: World, *frontends: Frontend) -> list[str]:
    before = len(world.watch.written)
    world.change(by_service(*frontends))
    return world.watch.written[before:]


def test_ranges_are_written_before_the_descriptor_that_names_them(world: World):
    order = written(world, limited(BOTH))
    assert order.count("lb_src_ranges") == 2
    assert order[order.index("lb_src_ranges") :][:4] == [
        *("lb_src_ranges", "lb_src_ranges", "lb_names", "lb_descs"),
    ]


@pytest.mark.parametrize("new", [(), ONE, ALLOWED[1:]])
def test_other_ranges_are_one_commit_and_the_old_ones_stay_for_the_grace_time(
    world: World, new: Prefixes
):
    world.change(by_service(limited(BOTH)))
    assert written(world, limited(new)) == ["lb_src_ranges"] * len(new) + ["lb_descs", "lb_current"]
    assert len(entries(world)) == 2 + len(new)
    assert_tidy(world)
    assert len(entries(world)) == len(new)


def test_other_endpoints_leave_ranges_alone(world: World):
    world.change(by_service(limited(BOTH)))
    before = entries(world)
    order = written(world, limited(BOTH, local=backends("10.1.0.2")))
    assert "lb_src_ranges" not in order
    assert entries(world) == before


def test_frontends_of_a_service_port_share_their_ranges(world: World):
    world.change(by_service(limited(BOTH), limited(BOTH, "192.0.2.1")))
    assert len({each.source_ranges for each in entries(world)}) == 1
    assert world.sync.usage()["lb_src_ranges"] == (2, 64)


def test_equal_ranges_of_two_services_are_two_sets(world: World):
    world.change(by_service(limited(ONE), limited(ONE, "192.0.2.1", service=named("b"))))
    assert len({each.source_ranges for each in entries(world)}) == 2


def test_ranges_go_with_their_service(world: World):
    world.change(by_service(limited(BOTH)))
    world.change({})
    assert len(entries(world)) == 2
    assert_tidy(world)
    assert entries(world) == []


def test_a_restart_changes_nothing_and_then_gives_no_id_twice(world: World):
    world.change(by_service(limited(BOTH)))
    before = entries(world)
    assert written_by_restart(world) == []
    assert entries(world) == before
    world.change(by_service(limited(ONE)))
    assert [each.source_ranges for each in entries(world)] == [1, 1, 2]


def test_what_is_left_from_before_a_restart_goes_after_it(world: World):
    world.change(by_service(limited(BOTH)))
    world.change(by_service(limited(ONE)))
    world.resync(world.state)
    assert len(entries(world)) == 3
    assert_tidy(world)
    assert len(entries(world)) == 1


@pytest.mark.parametrize("damage", [0, 1], ids=["all are gone", "one is gone"])
def test_ranges_that_are_not_whole_are_written_again(world: World, damage: int):
    world.change(by_service(limited(BOTH)))
    world.watch.inspect = lambda: None
    keys = [each for each, _ in world.maps["lb_src_ranges"].items()]
    world.maps["lb_src_ranges"].delete_batch(keys[damage:])
    world.sync = world.restarted()
    assert world.sync.resync(world.state) == {}
    found = look_up(world.maps, key("10.96.0.1"))
    assert found
    assert found.offer.sources == frozenset(BOTH)
    assert_tidy(world)


def test_ranges_that_do_not_fit_change_nothing():
    world = World({"lb_src_ranges": 3})
    world.change(by_service(limited(BOTH)))
    before = entries(world)
    more = limited((*BOTH, Prefix(ALLOWED[0].address, 100)))
    (error,) = world.sync.apply(by_service(more)).values()
    assert (error.map_name, error.errno) == ("lb_src_ranges", E2BIG)
    assert entries(world) == before
    assert world.sync.usage()["lb_src_ranges"] == (2, 3)
    assert world.sync.apply(by_service(limited(ONE))) == {}


def test_ids_start_over_after_the_last_and_pass_over_those_in_use():
    sets = SourceRanges(memory_maps()["lb_src_ranges"])
    first = sets.take(ONE)
    sets.write([first])
    sets._next = LAST
    assert [sets.take(ONE) for _ in range(3)] == [LAST, 2, 3]


def test_there_is_room_for_the_ranges_of_every_service_port_twice():
    many = tuple(Prefix(ALLOWED[0].address, length) for length in range(1, 129))
    names = (named(f"service-{number}") for number in range(100))
    planned = [limited(many, f"192.0.2.{vip}", service=name) for name in names for vip in (1, 2)]
    assert sizes_for(planned).src_ranges >= 2 * 128 * 100
    assert sizes_for(()).src_ranges == Sizes().src_ranges
    assert Sizes().grown().src_ranges == 2 * Sizes().src_ranges

# SPDX-License-Identifier: Apache-2.0
"""Lookup tables after the slots of a range: when they are written, kept, and left out."""

from errno import E2BIG

from ebpflb.dataplane.layout.capacity import MOST_SLOTS, sizes_for
from ebpflb.dataplane.services import staging
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import Found, look_up
from tests.unit.dataplane.world import World

PODS = ("10.1.0.1", "10.1.0.2", "10.2.0.1")
TABLE = 31
MAGLEV = {"scheduler": Scheduler.MAGLEV, "table_size": TABLE}


def served(*pods: str, **fields):
    return by_service(frontend(choice=backends(*pods), **{**MAGLEV, **fields}))


def found(world: World) -> Found:
    """What a program finds; the table is as the model makes it, or that fails."""
    made = look_up(world.maps, key("10.96.0.1"))
    assert made
    return made


def slots_used(world: World) -> int:
    world.now += 10
    world.sync.collect()
    return world.sync.usage()["lb_slots"].used


def test_both_ranges_of_all_frontends_share_a_table():
    world = World()
    other = frontend("10.96.0.1", backends(*PODS), key=key("10.96.0.1", 443), **MAGLEV)
    world.change(by_service(*served(*PODS)[named("web")[:2]], other))
    assert slots_used(world) == len(PODS) + TABLE


def test_a_single_backend_needs_none():
    world = World()
    world.change(served(PODS[0]))
    assert slots_used(world) == 1


def test_a_change_of_something_else_keeps_the_table():
    world = World()
    world.change(served(*PODS))
    world.watch.written.clear()
    world.change(served(*PODS, affinity_timeout=60))
    assert "lb_slots" not in world.watch.written


def test_schedulers_with_tables_share_one_and_others_have_none():
    world = World()
    world.change(served(*PODS))
    world.watch.written.clear()
    world.change(served(*PODS, scheduler=Scheduler.SOURCE_HASH))
    assert "lb_slots" not in world.watch.written
    world.change(served(*PODS, scheduler=Scheduler.RANDOM, table_size=0))
    assert slots_used(world) == len(PODS)


def test_another_size_makes_another_table():
    world = World()
    world.change(served(*PODS))
    world.change(served(*PODS, table_size=37))
    assert slots_used(world) == len(PODS) + 37


def test_where_the_map_may_grow_a_service_without_room_is_refused():
    world = World({"lb_slots": TABLE})
    (error,) = world.sync.apply(served(*PODS)).values()
    assert (error.map_name, error.errno) == ("lb_slots", E2BIG)


def test_where_it_may_not_the_service_is_served_without(monkeypatch, caplog):
    monkeypatch.setattr(staging, "MOST_SLOTS", TABLE)
    world = World({"lb_slots": TABLE})
    assert not world.sync.apply(served(*PODS))
    assert len(found(world).backends) == len(PODS)
    assert slots_used(world) == len(PODS)
    assert caplog.messages == [
        f"no room for a table of {TABLE} slots: each node chooses on its own, whatever the weights"
    ]
    assert not world.sync.apply(served(*PODS, affinity_timeout=60))
    assert slots_used(world) == len(PODS)


def test_there_is_room_for_each_table_twice_up_to_a_bound():
    frontends = [
        frontend(
            f"10.96.{i}.1",
            backends(*PODS),
            service=named(f"s{i}"),
            **MAGLEV | {"table_size": 10007},
        )
        for i in range(200)
    ]
    assert 2 * 3 * 10007 <= sizes_for(frontends[:3]).slots <= 4 * 3 * 10007
    assert 2 * 50 * 10007 <= sizes_for(frontends[:50]).slots <= 4 * 50 * 10007
    double = [*frontends[:50], *frontends[:50]]
    assert sizes_for(double).slots == sizes_for(frontends[:50]).slots
    assert sizes_for(frontends * 1).slots <= MOST_SLOTS
    many = [
        frontend(
            f"10.97.{i}.1",
            backends(*PODS),
            service=named(f"t{i}"),
            **MAGLEV | {"table_size": 65521},
        )
        for i in range(250)
    ]
    assert sizes_for(many).slots == MOST_SLOTS

# SPDX-License-Identifier: Apache-2.0
"""Weights in the maps: what is written, what stays, and what is read again."""

import pytest

from ebpflb.dataplane.explain.choice import frontend_in_force
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.layout.capacity import MOST_SLOTS, sizes_for
from ebpflb.dataplane.layout.records import BackendRecord, pack_index, pack_open, unpack_open
from ebpflb.dataplane.services import staging
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.explain import differences
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named, weighted
from tests.unit.dataplane.programs import look_up
from tests.unit.dataplane.world import World
from tests.unit.dataplane.written import assert_tidy, written_by_restart

PODS = backends("10.1.0.1", "10.1.0.2", "10.2.0.1")
LEAST = {"scheduler": Scheduler.LEAST_CONNECTIONS}
MAGLEV = {"scheduler": Scheduler.MAGLEV, "table_size": 31}


def serve(world: World, *weights: int, **fields) -> None:
    world.change(by_service(frontend(choice=weighted(PODS, *weights), **fields)))


def records(world: World) -> list[BackendRecord]:
    values = (world.maps["lb_backends"].lookup(pack_index(index)) for index in range(3))
    return [BackendRecord.unpack(value or b"") for value in values]


def table(world: World) -> tuple[int, int]:
    """How many backends, and how many slots behind them."""
    found = look_up(world.maps, key("10.96.0.1"))
    assert found
    desc = Lookups(world.maps).frontend_lookup(key("10.96.0.1"))
    assert desc
    return desc.local_count, desc.local_table


@pytest.mark.parametrize(("fields", "slots"), [({}, 12), (LEAST, 12), (MAGLEV, 31)])
@pytest.mark.parametrize("weights", [(9, 1, 2)])
def test_a_table_has_as_many_slots_as_a_backend_has_weight(weights, fields, slots):
    world = World()
    own = (20, 4, 7) if fields is MAGLEV else weights
    serve(world, *own, **fields)
    assert table(world) == (3, slots)
    (found,) = read_frontends(world.maps)
    assert [each.weight for each in found.frontend.local.backends] == list(own)
    assert found.in_use(found.frontend.local.backends[0]).usable
    assert written_by_restart(world) == []
    assert_tidy(world)


def test_even_weights_have_no_table_and_leave_every_byte_as_it_is():
    world, plain = World(), World()
    serve(world, 1, 1, 1)
    plain.change(by_service(frontend(choice=PODS)))
    assert table(world) == (3, 0)
    names = ("lb_slots", "lb_backends", "lb_descs")
    contents = [[list(each.maps[name].items()) for name in names] for each in (world, plain)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("fields", [{}, LEAST])
def test_other_weights_replace_the_range_and_nothing_else(fields):
    world = World()
    serve(world, 9, 1, 1, **fields)
    before = [each._replace(weight=0) for each in records(world)]
    world.watch.written.clear()
    serve(world, 1, 9, 1, **fields)
    assert [each._replace(weight=0) for each in records(world)] == before
    written = {"lb_slots", "lb_descs", "lb_current"} | ({"lb_backends"} if fields else set())
    assert set(world.watch.written) == written


def test_only_where_connections_are_compared_has_a_backend_its_weight():
    world = World()
    serve(world, 9, 1, 1)
    assert [each.weight for each in records(world)] == [0, 0, 0]
    serve(world, 9, 1, 1, **LEAST)
    assert [each.weight for each in records(world)] == [9, 1, 1]
    serve(world, 1, 1, 1, **LEAST)
    assert [each.weight for each in records(world)] == [0, 0, 0]


def test_of_two_choices_the_larger_one_has_the_weight():
    world = World()
    here = backends("10.1.0.1", "10.1.0.2")
    both = frontend(choice=weighted(here, 3, 7), others=weighted(PODS, 2, 9, 5), **LEAST)
    world.change(by_service(both))
    assert [each.weight for each in records(world)] == [2, 9, 5]


def test_a_new_backend_starts_with_as_many_connections_as_its_weight_has_elsewhere():
    world = World()
    first = weighted(backends("10.1.0.1", "10.1.0.2"), 1, 3)
    world.change(by_service(frontend(choice=first, **LEAST)))
    for index, number in enumerate((10, 30)):
        world.maps["lb_open"].update(pack_index(index), pack_open(number))
    serve(world, 1, 3, 2, **LEAST)
    assert unpack_open(world.maps["lb_open"].lookup(pack_index(2)) or b"") == 20


def test_a_hash_instead_of_turns_makes_another_table_of_the_same_size():
    world = World()
    serve(world, 20, 4, 7)
    world.watch.written.clear()
    serve(world, 20, 4, 7, **MAGLEV)
    assert "lb_slots" in world.watch.written
    world.watch.written.clear()
    serve(world, 20, 4, 7, **MAGLEV | {"scheduler": Scheduler.SOURCE_HASH})
    assert "lb_slots" not in world.watch.written


def test_without_room_for_a_table_the_weights_do_not_count(monkeypatch, caplog):
    monkeypatch.setattr(staging, "MOST_SLOTS", 12)
    world = World({"lb_slots": 12})
    assert not world.sync.apply(by_service(frontend(choice=weighted(PODS, 9, 1, 2))))
    (found,) = read_frontends(world.maps)
    assert not found.frontend.local.weights
    assert caplog.messages == [
        "no room for a table of 12 slots: each node chooses on its own, whatever the weights"
    ]


def test_there_is_room_for_the_tables_of_weights():
    served = [
        frontend(f"10.96.1.{n}", weighted(PODS, 900, 90, 10), service=named(f"s{n}"))
        for n in range(200)
    ]
    assert MOST_SLOTS >= sizes_for(served).slots >= 2 * 200 * 1003


def test_explain_knows_the_weights_in_force():
    world = World()
    serve(world, 9, 1, 2)
    lookups = Lookups(world.maps)
    desc = lookups.frontend_lookup(key("10.96.0.1"))
    assert desc
    wanted = frontend(choice=weighted(PODS, 9, 1, 2))
    assert not differences(frontend_in_force(lookups, desc), wanted)
    other = differences(frontend_in_force(lookups, desc), frontend(choice=PODS))
    assert "backend 10.1.0.1 port 8080, weight 9 in the kernel alone" in other[0]

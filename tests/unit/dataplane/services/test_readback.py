# SPDX-License-Identifier: Apache-2.0
"""Inconsistent map contents are ignored and their slots freed."""

from collections.abc import Callable

import pytest

from ebpflb.dataplane.layout.structs import LbDesc, u32, u64
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import element, key_bytes, look_up
from tests.unit.dataplane.world import World
from tests.unit.dataplane.written import assert_tidy, usable

DESIRED = by_service(frontend(choice=backends("10.1.0.1")))


def put(world: World, name: str, index: int, value: object) -> None:
    world.maps[name].update(bytes(u32(index)), bytes(value))  # type: ignore[call-overload]


def change_desc(world: World, **fields: int) -> None:
    desc = LbDesc.from_buffer_copy(element(world.maps, "lb_descs", 1))
    for name, value in fields.items():
        setattr(desc.local, name, value)
    put(world, "lb_descs", 1, desc)


BROKEN: dict[str, Callable[[World], None]] = {
    "a word out of range": lambda world: put(world, "lb_current", 0, u64(1 << 40)),
    "a word that is zero": lambda world: put(world, "lb_current", 0, u64(0)),
    "another frontend's descriptor": lambda world: put(world, "lb_descs", 1, LbDesc()),
    "a range out of range": lambda world: change_desc(world, base=1 << 30),
    "a slot out of range": lambda world: put(world, "lb_slots", 0, u32(1 << 30)),
    "an index out of range": lambda world: world.maps["lb_frontends"].update(
        key_bytes(key("10.96.0.1")), bytes(u32(1 << 20))
    ),
    "no name": lambda world: world.maps["lb_names"].delete_batch([bytes(u32(1))]),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_frontend_that_is_not_whole_is_written_again(damage: Callable[[World], None]):
    world = World()
    world.change(DESIRED)
    world.watch.inspect = lambda: None
    damage(world)
    world.sync = world.restarted()
    world.sync.load()
    assert look_up(world.maps, key("10.96.0.1")) is None
    assert world.sync.resync(DESIRED) == {}
    assert_tidy(world)


def test_of_two_service_ids_with_one_name_only_one_is_believed():
    world = World()
    both = (frontend(choice=backends("10.1.0.1")), frontend("10.96.0.2", service=named("b")))
    world.change(by_service(*both))
    web = world.maps["lb_names"].lookup(bytes(u32(1))) or b""
    world.maps["lb_names"].update(bytes(u32(2)), web)
    world.watch.inspect = lambda: None
    world.sync = world.restarted()
    world.sync.resync(DESIRED)
    world.state = DESIRED
    assert_tidy(world)


def test_what_an_interrupted_sync_left_behind_is_cleaned_before_anything_is_desired():
    world = World()
    world.change(DESIRED)
    world.maps["lb_frontends"].delete(key_bytes(key("10.96.0.1")))
    world.watch.inspect = lambda: None
    world.sync = world.restarted()
    world.sync.load()
    assert usable(world) == []
    assert world.sync.idle() == set()
    assert world.sync.apply({}) == {}
    world.state = {}
    assert_tidy(world)

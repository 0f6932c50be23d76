# SPDX-License-Identifier: Apache-2.0
"""What somebody else writes into the maps is found; test_sync_properties.py has that nothing else
is.
"""

import pytest

from ebpflb.model.address import parse_address
from ebpflb.model.extensions.limits import Limits, OpenLimit
from ebpflb.model.plan import FrontendType
from ebpflb.model.source_ranges import Prefix
from tests.unit.dataplane.desired import backends, by_service, frontend
from tests.unit.dataplane.world import World

ARRAYS = (
    "lb_current",
    "lb_descs",
    "lb_slots",
    "lb_backends",
    "lb_addr_flags",
    "lb_dest_filter",
)
HASHES = ("lb_frontends", "lb_addrs", "lb_src_ranges", "lb_limits", "lb_names", "lb_pods_here")


@pytest.fixture
def world() -> World:
    """A Service that has something in each map."""
    world = World()
    pods = backends("10.1.0.1", "10.1.0.2", local=True)
    served = frontend(
        "192.0.2.1",
        pods,
        type=FrontendType.LOAD_BALANCER,
        allowed_sources=(Prefix(parse_address("198.51.100.0"), 120),),
        dsr=True,
        limits=Limits(OpenLimit(5)),
        here=pods.backends,
    )
    world.change(by_service(served))
    return world


def differing(world: World) -> set[str]:
    return set(world.sync.compare()) - {""}


def used_key(world: World, name: str) -> bytes:
    return next(key for key, value in world.maps[name].items() if any(value) or name in HASHES)


@pytest.mark.parametrize("name", [*ARRAYS, *HASHES])
def test_another_value_is_found(world: World, name: str) -> None:
    table, at = world.maps[name], used_key(world, name)
    value = table.lookup(at) or b""
    table.update(at, bytes([value[0] ^ 0x80]) + value[1:])
    assert name in differing(world)


@pytest.mark.parametrize("name", HASHES)
def test_what_is_gone_is_found(world: World, name: str) -> None:
    world.maps[name].delete(used_key(world, name))
    assert differing(world) == {name}


@pytest.mark.parametrize("name", HASHES)
def test_what_is_one_too_many_is_found(world: World, name: str) -> None:
    table, at = world.maps[name], used_key(world, name)
    table.update(bytes([at[0] ^ 1]) + at[1:], table.lookup(at) or b"")
    assert differing(world) == {name}


def test_a_comparison_ends_when_the_maps_are_read_back(world: World) -> None:
    parts = world.sync.compare()
    next(parts)
    world.sync.load()
    assert next(parts, None) is None

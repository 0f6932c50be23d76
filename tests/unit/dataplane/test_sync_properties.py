# SPDX-License-Identifier: Apache-2.0
"""What holds for all sequences of changes: after every single write, and after every crash."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpflb.dataplane.layout.structs import LbBackend, u32
from ebpflb.dataplane.services import sync
from tests.unit.dataplane.desired import Desired, desired_states
from tests.unit.dataplane.programs import (
    USABLE,
    filter_flags,
    filter_wanted,
    flags_of,
    pods_wanted,
    vip_flags,
)
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World, every

TIGHT = {
    "lb_frontends": 4,
    "lb_descs": 7,
    "lb_slots": 12,
    "lb_backends": 8,
    "lb_addrs": 3,
    "lb_names": 2,
    "lb_src_ranges": 3,
}


@pytest.fixture(autouse=True, scope="module")
def each_service_is_written_on_its_own() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "_GROUP", 1)
        yield


STATES = st.lists(desired_states(), min_size=1, max_size=4)


@settings(max_examples=40)
@given(STATES)
def test_each_frontend_has_its_old_backends_or_its_new_ones_at_every_moment(states: list[Desired]):
    world = World()
    for desired in states:
        assert not world.change(desired)
        assert world.state == desired
        assert_tidy(world)


@settings(max_examples=40)
@given(STATES, st.sets(st.sampled_from(sorted(TIGHT))))
def test_a_service_that_does_not_fit_keeps_what_it_had(states: list[Desired], tight: set[str]):
    world = World({name: TIGHT[name] for name in tight})
    for desired in states:
        world.change(desired)
        assert_tidy(world)
        world.now += 10
        world.sync.collect()


@settings(max_examples=40)
@given(STATES)
def test_a_restart_writes_nothing(states: list[Desired]):
    world = World()
    for desired in states:
        world.change(desired)
    assert written_by_restart(world) == []


@settings(max_examples=40)
@given(desired_states(), desired_states(), st.lists(st.integers(0, 60), min_size=1, max_size=3))
def test_after_crashes_at_any_write_a_resync_converges(
    old: Desired, new: Desired, moments: list[int]
):
    world = World()
    world.change(old)
    world.crashed = True
    for moment in moments:
        world.watch.crash_at = len(world.watch.written) + moment
        with suppress(CrashError):
            world.restarted().resync(new)
    world.watch.crash_at = None
    assert not world.resync(new)
    assert_tidy(world)
    assert written_by_restart(world) == []


def written_by_restart(world: World) -> list[str]:
    before = len(world.watch.written)
    world.resync(world.state)
    return world.watch.written[before:]


def assert_tidy(world: World) -> None:
    """Nothing is in the maps, or in use, but what the state of the world needs."""
    world.sync.forget(world.sync.idle())
    world.now += 10
    world.sync.collect()
    frontends = list(every(world.state))
    assert {key for key, _ in world.maps["lb_addrs"].items()} == vip_flags(frontends).keys()
    passing, wanted = filter_flags(world.maps), filter_wanted(frontends)
    assert passing.keys() == wanted.keys()
    # An address that stays may have had other flags, which flows still need.
    assert all(flags & wanted[index] == wanted[index] for index, flags in passing.items())
    ports = {each.service for each in frontends}
    used = {name: usage.used for name, usage in world.sync.usage().items()}
    assert used["lb_frontends"] == used["lb_descs"] == len(frontends)
    assert used["lb_names"] == len(ports) == len(list(world.maps["lb_names"].items()))
    named = flags_of(frontends).keys()
    assert len(named) == len(usable(world))
    assert used["lb_backends"] == len(named | pods_wanted(frontends))
    assert len(list(world.maps["lb_frontends"].items())) == len(frontends)
    words = [value for _, value in world.maps["lb_current"].items() if any(value)]
    assert len(words) == len(frontends)
    contents = {
        (each.service, choice.backends, each.table_size if len(choice.backends) > 1 else 0)
        for each in frontends
        for choice in (each.local, each.others)
    }
    sets = {(each.service, each.allowed_sources) for each in frontends}
    ranges = sum(len(prefixes) for _, prefixes in sets)
    assert used["lb_src_ranges"] == ranges == len(list(world.maps["lb_src_ranges"].items()))
    assert used["lb_slots"] == sum(len(backends) + table for _, backends, table in contents)


def usable(world: World) -> list[int]:
    records = ((key, LbBackend.from_buffer_copy(v)) for key, v in world.maps["lb_backends"].items())
    return [u32.from_buffer_copy(key).value for key, each in records if each.flags & USABLE]

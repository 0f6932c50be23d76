# SPDX-License-Identifier: Apache-2.0
"""Invariants of any sequence of changes: after every single write, and after every crash."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpflb.dataplane.services import sync
from tests.unit.dataplane.desired import Desired, desired_states
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World
from tests.unit.dataplane.written import assert_tidy, written_by_restart

TIGHT = {
    "lb_frontends": 4,
    "lb_descs": 7,
    "lb_slots": 12,
    "lb_backends": 8,
    "lb_addrs": 3,
    "lb_names": 2,
    "lb_src_ranges": 3,
    "lb_limits": 1,
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
@given(STATES, st.lists(st.integers(0, 3), min_size=4))
def test_a_comparison_finds_nothing_though_changes_get_in_between(
    states: list[Desired], steps: list[int]
):
    world = World()
    parts = world.sync.compare()
    for desired, count in zip(states, steps, strict=False):
        world.change(desired)
        world.now += 10
        world.sync.collect()
        world.sync.forget(world.sync.idle())
        assert not any(next(parts, "") for _ in range(count))
    assert not any(parts)


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

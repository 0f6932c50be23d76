# SPDX-License-Identifier: Apache-2.0

import gc
import resource

import pytest

from ebpflb.agent.process import ENOUGH_FILES, collect_seldom, raise_file_limit, settle


@pytest.fixture(autouse=True)
def _collector():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_there_is_left_out_of_later_collections():
    settle()
    assert gc.get_freeze_count() > 0


def test_new_objects_are_seldom_gone_over_and_at_first_hardly_ever():
    before = gc.get_threshold()
    collect_seldom()
    assert gc.get_threshold() == (200_000, *before[1:])
    settle()
    assert gc.get_threshold() == (10_000, 1_000, before[2])


NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((1024, 524288), (ENOUGH_FILES, 524288), id="systemd's"),
        pytest.param((1024, 4096), (4096, 4096), id="no more is allowed"),
        pytest.param((1024, NO_LIMIT), (ENOUGH_FILES, NO_LIMIT), id="anything is allowed"),
        pytest.param((1048576, 1048576), None, id="there is more already"),
        pytest.param((NO_LIMIT, NO_LIMIT), None, id="there is no limit"),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(monkeypatch, before, after):
    changed = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    raise_file_limit()
    assert changed == ([after] if after else [])

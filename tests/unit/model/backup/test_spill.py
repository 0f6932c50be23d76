# SPDX-License-Identifier: Apache-2.0
"""When a Service port begins and ends to spill over."""

from ebpflb.model.backup.spill import QUIET_SECONDS, SpillChange, Spills
from tests.builders import port_name

WEB, API = port_name("http"), port_name("http", service="api")


def observed(spills: Spills, count: int, now: float, limit: int = 10) -> list[bool]:
    found = spills.observe({WEB: limit}, {WEB: count}, now)
    return [each.is_spilling for each in found]


def test_it_begins_at_the_number():
    spills = Spills()
    assert observed(spills, 9, 0) == []
    assert spills.observe({WEB: 10}, {WEB: 10}, 1) == [SpillChange(WEB, True, 10)]
    assert list(spills.ports) == [WEB]


def test_it_ends_after_a_while_below_four_fifths():
    spills = Spills()
    observed(spills, 10, 0)
    assert observed(spills, 8, QUIET_SECONDS) == []
    assert observed(spills, 7, 100) == []
    assert observed(spills, 7, 100 + QUIET_SECONDS - 0.1) == []
    assert observed(spills, 7, 100 + QUIET_SECONDS) == [False]
    assert not spills.ports


def test_many_connections_in_between_begin_the_while_anew():
    spills = Spills()
    observed(spills, 10, 0)
    observed(spills, 7, 1)
    observed(spills, 8, 2)
    assert observed(spills, 7, QUIET_SECONDS + 1) == []
    assert observed(spills, 7, 2 * QUIET_SECONDS + 1) == [False]


def test_a_limit_of_one_ends_without_any_connection():
    spills = Spills()
    assert observed(spills, 1, 0, limit=1) == [True]
    assert observed(spills, 1, QUIET_SECONDS, limit=1) == []
    observed(spills, 0, 100, limit=1)
    assert observed(spills, 0, 100 + QUIET_SECONDS, limit=1) == [False]


def test_a_port_that_may_not_spill_over_any_more_ends_at_once():
    spills = Spills()
    spills.observe({WEB: 1, API: 1}, {WEB: 1, API: 5}, 0)
    assert spills.observe({WEB: 1}, {WEB: 1}, 1) == [SpillChange(API, False, 0)]


def test_a_port_of_which_nothing_is_counted_has_no_connections():
    assert Spills().observe({WEB: 1}, {}, 0) == []

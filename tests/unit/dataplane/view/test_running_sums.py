# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.view.running_sums import RunningSums

Sums = RunningSums[str]


def total(sums, group="web"):
    return dict(sums.totals()).get(group)


def add(sums, key, index, *counts):
    sums.begin()
    sums.add("web", key, index, counts)


def test_a_group_is_the_sum_of_its_counters():
    sums: Sums = RunningSums()
    sums.begin()
    sums.add("web", "one", 0, (1, 2))
    sums.add("web", "two", 1, (10, 20))
    sums.add("api", "one", 2, (5, 5))
    assert (total(sums), total(sums, "api")) == ((11, 22), (5, 5))


def test_a_counter_that_is_gone_stays_in_the_sum():
    sums: Sums = RunningSums()
    add(sums, "one", 0, 3)
    add(sums, "two", 1, 4)
    assert total(sums) == (7,)


def test_what_a_counter_counted_before_it_went_is_still_found():
    sums: Sums = RunningSums()
    add(sums, "one", 0, 3)
    add(sums, "two", 1, 4)
    sums.finish([(5,), (4,)], {1})
    assert total(sums) == (9,)
    sums.finish([(6,), (4,)], {0, 1})
    assert total(sums) == (9,)
    sums.finish([(1,), (4,)], {1})
    assert total(sums) == (9,)


def test_what_another_counted_at_its_place_is_not_taken_for_its_own():
    sums: Sums = RunningSums()
    add(sums, "one", 0, 3)
    sums.begin()
    sums.add("api", "two", 0, (10,))
    sums.finish([(10,)], {0})
    sums.begin()
    sums.finish([(20,)], set())
    assert (total(sums), total(sums, "api")) == ((3,), (20,))
    add(sums, "one", 0, 5)
    assert total(sums) == (8,)


def test_counters_that_come_and_go_at_one_place_take_no_more_room():
    sums: Sums = RunningSums()
    for key in range(100):
        add(sums, f"{key}", 0, 3)
        sums.finish([(3,)], {0})
    assert total(sums) == (300,)
    assert len(sums._groups["web"]) == 1


def test_a_counter_that_was_missing_for_a_while_counts_once():
    sums: Sums = RunningSums()
    add(sums, "one", 0, 3)
    sums.begin()
    add(sums, "one", 0, 4)
    assert total(sums) == (4,)


def test_a_counter_that_starts_over_adds_to_what_it_had():
    sums: Sums = RunningSums()
    add(sums, "one", 0, 3)
    add(sums, "one", 5, 3)
    assert total(sums) == (6,)
    add(sums, "one", 5, 2)
    assert total(sums) == (8,)


def test_a_group_that_is_forgotten_starts_over():
    sums: Sums = RunningSums()
    add(sums, "one", 7, 3)
    assert sums.length == 8
    sums.forget(lambda group: group == "web")
    assert (total(sums), sums.length) == (None, 0)
    add(sums, "one", 0, 1)
    assert total(sums) == (1,)

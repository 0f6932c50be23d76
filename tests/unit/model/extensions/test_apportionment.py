# SPDX-License-Identifier: Apache-2.0
"""Weights as slots of a table, and the turns of backends in it."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.extensions.apportionment import MOST_TURNS, as_slots, as_turns, interleaved
from ebpflb.model.extensions.weights import HEAVIEST

WEIGHTS = st.lists(st.integers(1, HEAVIEST), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("weights", "turns"),
    [
        ([90, 10], [9, 1]),
        ([10, 90, 50], [1, 9, 5]),
        ([7, 7, 7], [1, 1, 1]),
        ([5], [1]),
        ([999, 1], [999, 1]),
        # More than a thousand turns: rounded.
        ([999_999, 1], [999, 1]),
        ([2001, 2003], [1, 1]),
        ([1_000_000, 500_001, 1], [666, 333, 1]),
    ],
)
def test_turns_are_small(weights: list[int], turns: list[int]):
    assert as_turns(weights) == turns


@given(WEIGHTS)
def test_turns_are_in_proportion(weights: list[int]):
    turns, whole = as_turns(weights), sum(weights)
    assert min(turns) >= 1
    assert sum(turns) <= MOST_TURNS
    for weight, turn in zip(weights, turns, strict=True):
        wanted, got = Fraction(weight, whole), Fraction(turn, sum(turns))
        # The others give up a turn at most to each of those too light for one.
        assert abs(wanted - got) <= Fraction(len(weights) + 1, MOST_TURNS)


def test_a_light_share_of_very_many_backends_stays_light():
    turns = as_turns([1] * 500 + [124] * 400)
    assert Fraction(sum(turns[:500]), sum(turns)) < Fraction(4, 100)


def test_too_many_backends_are_not_told_apart():
    assert set(as_turns([1, 3] * (1 << 14))) == {1}


@given(WEIGHTS, st.sampled_from([41, 251, 10007]))
def test_slots_are_in_proportion(weights: list[int], size: int):
    slots, whole = as_slots(weights, size), sum(weights)
    if set(slots) == {1}:
        assert max(weights) * size <= min(weights) * size + 2 * whole
        return
    assert sum(slots) == size
    assert min(slots) >= 1
    for weight, slot in zip(weights, slots, strict=True):
        wanted = Fraction(weight * size, whole)
        assert -len(weights) - 1 <= slot - wanted <= 1


def test_weights_that_a_table_cannot_show_are_even():
    assert as_slots([125, 126], 251) == [1, 1]
    assert as_slots([124, 127], 251) == [124, 127]
    assert as_slots([1, 2, 3], 2) == [1, 1, 1]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_at_every_point_each_has_had_its_share(turns: list[int]):
    order, had, total = list(interleaved(turns)), Counter[int](), sum(turns)
    for number, index in enumerate(order, start=1):
        had[index] += 1
        for each, share in enumerate(turns):
            assert abs(had[each] - Fraction(number * share, total)) < 1
    assert [had[index] for index in range(len(turns))] == turns


def test_equal_turns_come_in_order():
    assert list(interleaved([1, 1, 1])) == [0, 1, 2]
    assert list(interleaved([5, 1, 1])) == [0, 0, 0, 1, 0, 0, 2]

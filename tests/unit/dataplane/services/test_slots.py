# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.services.slots import IndexRange, IndexRanges, Indices, NoRoomError

STEPS = ("take", "give", "retire", "collect")


def test_indices_are_given_out_from_the_first_to_the_last():
    indices = Indices(4, first=1)
    assert [indices.take() for _ in range(indices.capacity)] == [1, 2, 3]
    with pytest.raises(NoRoomError):
        indices.take()


def test_a_retired_index_is_free_only_after_it_is_collected():
    indices = Indices(1)
    indices.retire([indices.take()], now=5)
    assert not indices.has_retired(4.9)
    indices.collect(4.9)
    with pytest.raises(NoRoomError):
        indices.take()
    assert indices.has_retired(5)
    indices.collect(5)
    assert indices.take() == 0


def test_restored_indices_are_used_and_the_gaps_are_free():
    indices = Indices(6)
    indices.retire([indices.take()], now=0)
    indices.restore([1, 3, 3])
    assert indices.available == 4
    assert [indices.take() for _ in range(4)] == [0, 2, 4, 5]
    assert not indices.has_retired(9)


@given(st.lists(st.sampled_from(STEPS)))
def test_no_index_has_two_users(steps: list[str]):
    indices, used, retired = Indices(5), set[int](), set[int]()
    for step in steps:
        if step == "take" and len(used | retired) < 5:
            index = indices.take()
            assert index not in used | retired
            used.add(index)
        elif step == "give" and used:
            indices.give(used.pop())
        elif step == "retire":
            indices.retire(used, now=0)
            retired |= used
            used = set()
        elif step == "collect":
            indices.collect(0)
            retired = set()
        assert indices.available == 5 - len(used | retired)


def test_the_smallest_range_that_fits_is_taken():
    ranges = IndexRanges(100)
    ranges.restore([IndexRange(10, 5), IndexRange(18, 2), IndexRange(30, 70)])
    assert ranges.take(3) == IndexRange(15, 3)
    assert ranges.take(8) == IndexRange(0, 8)
    assert ranges.take(10) == IndexRange(20, 10)
    with pytest.raises(NoRoomError):
        ranges.take(3)


def test_neighbours_that_are_given_back_become_one_range():
    ranges = IndexRanges(9)
    low, middle, high = (ranges.take(3) for _ in range(3))
    ranges.give(low)
    ranges.give(high)
    ranges.give(middle)
    assert ranges.take(9) == IndexRange(0, 9)


def test_a_retired_range_is_free_only_after_it_is_collected():
    ranges = IndexRanges(4)
    ranges.retire([ranges.take(4)], now=5)
    ranges.collect(4.9)
    with pytest.raises(NoRoomError):
        ranges.take(1)
    assert ranges.has_retired(5)
    ranges.collect(5)
    assert ranges.available == 4


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12))))
def test_restored_ranges_may_overlap_and_never_come_again(used: list[tuple[int, int]]):
    ranges = IndexRanges(80)
    ranges.restore(IndexRange(*place) for place in used)
    taken = {index for base, length in used for index in range(base, base + length)}
    assert ranges.available == 80 - len(taken)
    for _ in range(ranges.available):
        base = ranges.take(1).base
        assert base not in taken
        taken.add(base)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 9))))
def test_no_slot_is_in_two_ranges(steps: list[tuple[str, int]]):
    ranges, used, retired = IndexRanges(30), list[IndexRange](), list[IndexRange]()
    for step, number in steps:
        if step == "take" and longest_gap([*used, *retired]) >= number:
            used.append(ranges.take(number))
            assert used[-1].length == number
        elif step == "give" and used:
            ranges.give(used.pop(number % len(used)))
        elif step == "retire":
            ranges.retire(used, now=0)
            retired, used = retired + used, []
        elif step == "collect":
            ranges.collect(0)
            retired = []
        slots = [slot for place in used + retired for slot in range(place.base, sum(place))]
        assert len(slots) == len(set(slots)) == 30 - ranges.available


def longest_gap(ranges: list[IndexRange]) -> int:
    end = longest = 0
    for place in sorted([*ranges, IndexRange(30, 0)]):
        longest = max(longest, place.base - end)
        end = place.base + place.length
    return longest

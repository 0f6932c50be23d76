# SPDX-License-Identifier: Apache-2.0
"""Weights as small whole numbers: how many slots of a table each backend gets."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import gcd

# Slots of a table: a share of 1:999 is exact, and each of very many backends has some.
MOST_TURNS = 1000
_PER_BACKEND = 16
# struct lb_range counts slots in 16 bits.
_MOST_IN_ALL = 1 << 15


def as_turns(weights: Sequence[int]) -> Sequence[int]:
    """In proportion, as small as possible; rounded if there would be too many turns.

    weights: above 0. All 1 if they are equal, or if there are too many to tell them apart.
    """
    reduced = _reduced(weights)
    most = min(max(MOST_TURNS, _PER_BACKEND * len(weights)), _MOST_IN_ALL)
    return reduced if sum(reduced) <= most else _reduced(_apportioned(weights, most))


def as_slots(weights: Sequence[int], size: int) -> Sequence[int]:
    """In proportion, `size` together; all 1 if they would differ no more than even ones do."""
    slots = _apportioned(weights, size)
    return slots if max(slots) - min(slots) > 1 else [1] * len(slots)


def interleaved(turns: Sequence[int]) -> Iterable[int]:
    """Each index as often as its number of turns, as evenly spread as possible.

    At every point each has had its share, less or more than one turn: of those whose next turn is
    due, the one that must take it first does.
    """
    total = sum(turns)
    waiting = [(0, index, 0) for index in range(len(turns))]
    due = list[tuple[int, int, int]]()
    for turn in range(total):
        while waiting and waiting[0][0] <= turn:
            _, index, taken = heappop(waiting)
            heappush(due, (-(-(taken + 1) * total // turns[index]), index, taken + 1))
        _, index, taken = heappop(due)
        heappush(waiting, (taken * total // turns[index], index, taken))
        yield index


def _reduced(weights: Sequence[int]) -> Sequence[int]:
    divisor = gcd(*weights)
    return [each // divisor for each in weights]


def _apportioned(weights: Sequence[int], total: int) -> Sequence[int]:
    """By the largest remainder, and at least one for each; one for each if there are no more."""
    if total <= len(weights):
        return [1] * len(weights)
    smallest = _with_less_than_one(weights, total)
    left = total - len(smallest)
    whole = sum(weights) - sum(weights[index] for index in smallest)
    found = [1 if index in smallest else each * left // whole for index, each in enumerate(weights)]
    others = (index for index in range(len(weights)) if index not in smallest)
    by_remainder = sorted(others, key=lambda index: -(weights[index] * left % whole))
    for index in by_remainder[: total - sum(found)]:
        found[index] += 1
    return found


def _with_less_than_one(weights: Sequence[int], total: int) -> set[int]:
    """Those that get one although their part is smaller; what the others share is less by that."""
    found = set[int]()
    while True:
        left, whole = total - len(found), sum(weights) - sum(weights[index] for index in found)
        more = {
            index
            for index, each in enumerate(weights)
            if index not in found and each * left < whole
        }
        if not more:
            return found
        found |= more

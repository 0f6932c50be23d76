# SPDX-License-Identifier: Apache-2.0
"""Sums of counters in the kernel that only increase, whatever becomes of the counters."""

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from operator import add
from typing import Generic, TypeVar

from ebpflb.dataplane.view.counts import Sums, grown, has_restarted

_Group = TypeVar("_Group", bound=Hashable)


class _Counter:
    """A counter in the kernel. last: as it was read; total: also of before it restarted at 0."""

    __slots__ = ("index", "key", "last", "round", "total")

    def __init__(self, key: Hashable, index: int, counts: Sums) -> None:
        self.key = key
        self.index = index
        self.last = self.total = counts
        self.round = 0

    def update(self, index: int, counts: Sums) -> None:
        if counts == self.last and index == self.index:
            return
        new = grown(self.last, counts) if index == self.index else counts
        self.index, self.last, self.total = index, counts, _sum(self.total, new)


class RunningSums(Generic[_Group]):
    """Sums over groups of counters that come, go and restart at 0; the sums only increase.

    A removed counter keeps its index until another one reuses it. Then only its sum is kept.
    """

    def __init__(self) -> None:
        # Nearly all groups have one counter.
        self._groups: dict[_Group, tuple[_Counter, ...]] = {}
        # The sum of each group's counters whose index has been reused.
        self._past: dict[_Group, Sums] = {}
        self._round = 0

    @property
    def length(self) -> int:
        """The highest index of all counters, plus 1."""
        indices = (each.index for group in self._groups.values() for each in group)
        return max(indices, default=-1) + 1

    def begin(self) -> None:
        """Begin a round: call `add()` for each existing counter, then `finish()`."""
        self._round += 1

    def add(self, group: _Group, key: Hashable, index: int, counts: Sums) -> None:
        """Report a counter's value. A different index or a lower value means that it restarted."""
        counters = self._groups.get(group, ())
        counter = next((each for each in counters if each.key == key), None)
        if counter:
            counter.update(index, counts)
        else:
            counter = _Counter(key, index, counts)
            self._groups[group] = (*counters, counter)
        counter.round = self._round

    def finish(self, counts: Sequence[Sums], used: Container[int]) -> None:
        """Read the final values of removed counters. used: the indices in use."""
        for group, counters in self._groups.items():
            gone = [each for each in counters if each.round != self._round]
            for each in gone:
                if each.index in used:
                    self._past[group] = _sum(self._past.get(group, ()), each.total)
                    self._groups[group] = tuple(
                        left for left in self._groups[group] if left is not each
                    )
                elif each.index < len(counts) and not has_restarted(each.last, counts[each.index]):
                    each.update(each.index, counts[each.index])

    def forget(self, is_gone: Callable[[_Group], bool]) -> None:
        gone = [group for group in self._groups if is_gone(group)]
        for group in gone:
            del self._groups[group]
            self._past.pop(group, None)

    def totals(self) -> Iterator[tuple[_Group, Sums]]:
        for group, counters in self._groups.items():
            total = self._past.get(group, ())
            for each in counters:
                total = _sum(total, each.total)
            yield group, total


def _sum(one: Sums, other: Sums) -> Sums:
    return tuple(map(add, one, other)) if one else other

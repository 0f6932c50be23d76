# SPDX-License-Identifier: Apache-2.0
"""Allocates indices: single ones and contiguous ranges.

What was in use does not become free at once, because a program in the kernel may still use it: it
is retired, and reused only after `collect()`.
"""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

_Item = TypeVar("_Item")


class NoRoomError(Exception):
    """Nothing of the requested size is free."""


class IndexRange(NamedTuple):
    """`length` indices starting at `base`."""

    base: int
    length: int


class Pool(ABC, Generic[_Item]):
    """Allocates items. Retired items are reused only after `collect()`."""

    def __init__(self) -> None:
        self._retired: deque[tuple[float, Collection[_Item]]] = deque()

    def retire(self, items: Iterable[_Item], now: float) -> None:
        """Take back items that a program may still use; `now` never decreases."""
        if lot := list(items):
            self._retired.append((now, lot))

    def has_retired(self, until: float) -> bool:
        """Whether `collect(until)` would free something."""
        return bool(self._retired) and self._retired[0][0] <= until

    def collect(self, until: float) -> None:
        """Free what was retired at `until` or before. MapError."""
        while self.has_retired(until):
            self._free_retired(self._retired.popleft()[1])

    @abstractmethod
    def _free_retired(self, lot: Collection[_Item]) -> None:
        """Make a lot of retired items available."""


class Indices(Pool[int]):
    """Single indices from `first` to `size` - 1, lowest first."""

    def __init__(self, size: int, first: int = 0) -> None:
        super().__init__()
        self.size = size
        self.capacity = size - first
        self._first = first
        self.restore(())

    def restore(self, used: Iterable[int]) -> None:
        """Start over: `used` are in use, all others free."""
        taken = set(used)
        self._untouched = max(taken, default=self._first - 1) + 1
        gaps = (index for index in range(self._first, self._untouched) if index not in taken)
        self._free = array("I", gaps)
        self._free.reverse()
        self._retired.clear()

    @property
    def available(self) -> int:
        """How many are free now."""
        return len(self._free) + self.size - self._untouched

    def take(self) -> int:
        """A free index. NoRoomError if there is none."""
        if self._free:
            return self._free.pop()
        if self._untouched >= self.size:
            raise NoRoomError
        self._untouched += 1
        return self._untouched - 1

    def give(self, index: int) -> None:
        """Free an index at once that nobody has seen."""
        self._free.append(index)

    def _free_retired(self, lot: Collection[int]) -> None:
        self._free.extend(lot)


class IndexRanges(Pool[IndexRange]):
    """Contiguous ranges within 0 to `size` - 1, best fit, lowest first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.capacity = size
        self.restore(())

    def restore(self, used: Iterable[IndexRange]) -> None:
        """Start over: `used`, which may overlap, are in use, everything else is free."""
        self._by_length: list[tuple[int, int]] = []
        self._by_base: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._retired.clear()
        self.available = 0
        end = 0
        for taken in [*sorted(used), IndexRange(self.capacity, 0)]:
            if taken.base > end:
                self._add(end, taken.base - end)
            end = max(end, taken.base + taken.length)

    def fits(self, length: int) -> bool:
        """Whether `take(length)` would succeed."""
        return bisect_left(self._by_length, (length, 0)) < len(self._by_length)

    def take(self, length: int) -> IndexRange:
        """A free range of `length` > 0. NoRoomError if none is long enough."""
        at = bisect_left(self._by_length, (length, 0))
        if at == len(self._by_length):
            raise NoRoomError
        free, base = self._by_length[at]
        self._remove(base, free)
        if free > length:
            self._add(base + length, free - length)
        return IndexRange(base, length)

    def give(self, unseen: IndexRange) -> None:
        """Free a range at once that nobody has seen."""
        base, length = unseen
        if (before := self._by_end.get(base)) is not None:
            self._remove(before, base - before)
            base, length = before, length + base - before
        if (behind := self._by_base.get(base + length)) is not None:
            self._remove(base + length, behind)
            length += behind
        self._add(base, length)

    def _free_retired(self, lot: Collection[IndexRange]) -> None:
        for gone in lot:
            self.give(gone)

    def _add(self, base: int, length: int) -> None:
        insort(self._by_length, (length, base))
        self._by_base[base] = length
        self._by_end[base + length] = base
        self.available += length

    def _remove(self, base: int, length: int) -> None:
        del self._by_length[bisect_left(self._by_length, (length, base))]
        del self._by_base[base]
        del self._by_end[base + length]
        self.available -= length

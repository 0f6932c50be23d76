# SPDX-License-Identifier: Apache-2.0
"""Who uses which index: allocation of single indices and of contiguous ranges.

What was in use is not free again at once, because a program in the kernel may still hold it: it is
retired, and given out again only after `collect()`.
"""

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

_Kept = TypeVar("_Kept", bound=Collection[object])


class NoRoomError(Exception):
    """Nothing of the wanted size is free."""


class Range(NamedTuple):
    """`length` indices from `base` on."""

    base: int
    length: int


class Retired(Generic[_Kept]):
    """Lots, oldest first, with the time of each."""

    def __init__(self) -> None:
        """None yet."""
        self._lots: deque[tuple[float, _Kept]] = deque()

    def add(self, lot: _Kept, now: float) -> None:
        """One more lot; `now` never decreases."""
        if lot:
            self._lots.append((now, lot))

    def has(self, until: float) -> bool:
        """Whether `take(until)` gives something."""
        return bool(self._lots) and self._lots[0][0] <= until

    def take(self, until: float) -> Iterable[_Kept]:
        """The lots of that time and before, which are then gone."""
        while self.has(until):
            yield self._lots.popleft()[1]


class Indices:
    """Single indices from `first` to `size` - 1, the low ones first."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size = size
        self.capacity = size - first
        self._first = first
        self.restore(())

    def restore(self, used: Iterable[int]) -> None:
        """Forget everything: `used` are in use, all others free."""
        taken = set(used)
        self._untouched = max(taken, default=self._first - 1) + 1
        gaps = (index for index in range(self._first, self._untouched) if index not in taken)
        self._free = array("I", gaps)
        self._free.reverse()
        self._retired: Retired[array[int]] = Retired()

    @property
    def available(self) -> int:
        """How many can be taken now."""
        return len(self._free) + self.size - self._untouched

    def take(self) -> int:
        """A free index. NoRoomError when there is none."""
        if self._free:
            return self._free.pop()
        if self._untouched >= self.size:
            raise NoRoomError
        self._untouched += 1
        return self._untouched - 1

    def give(self, index: int) -> None:
        """Take back at once an index that nobody has seen."""
        self._free.append(index)

    def retire(self, indices: Iterable[int], now: float) -> None:
        """Take back indices that a program may still hold; `now` never decreases."""
        self._retired.add(array("I", indices), now)

    def has_retired(self, until: float) -> bool:
        """Whether `collect(until)` would free something."""
        return self._retired.has(until)

    def collect(self, until: float) -> None:
        """Free what was retired at `until` or before."""
        for lot in self._retired.take(until):
            self._free.extend(lot)


class Ranges:
    """Contiguous ranges out of 0 to `size` - 1: of the smallest free ones that fit, the lowest."""

    def __init__(self, size: int) -> None:
        self.capacity = size
        self.restore(())

    def restore(self, used: Iterable[Range]) -> None:
        """Forget everything: `used`, which may overlap, are in use, all else is free."""
        self._by_length: list[tuple[int, int]] = []
        self._by_base: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._retired: Retired[list[Range]] = Retired()
        self.available = 0
        end = 0
        for taken in [*sorted(used), Range(self.capacity, 0)]:
            if taken.base > end:
                self._add(end, taken.base - end)
            end = max(end, taken.base + taken.length)

    def take(self, length: int) -> Range:
        """A free range of `length` > 0. NoRoomError when none is long enough."""
        at = bisect_left(self._by_length, (length, 0))
        if at == len(self._by_length):
            raise NoRoomError
        free, base = self._by_length[at]
        self._remove(base, free)
        if free > length:
            self._add(base + length, free - length)
        return Range(base, length)

    def give(self, unseen: Range) -> None:
        """Take back at once a range that nobody has seen."""
        base, length = unseen
        if (before := self._by_end.get(base)) is not None:
            self._remove(before, base - before)
            base, length = before, length + base - before
        if (behind := self._by_base.get(base + length)) is not None:
            self._remove(base + length, behind)
            length += behind
        self._add(base, length)

    def retire(self, ranges: Iterable[Range], now: float) -> None:
        """Take back ranges that a program may still read; `now` never decreases."""
        self._retired.add(list(ranges), now)

    def has_retired(self, until: float) -> bool:
        """Whether `collect(until)` would free something."""
        return self._retired.has(until)

    def collect(self, until: float) -> None:
        """Free what was retired at `until` or before."""
        for lot in self._retired.take(until):
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

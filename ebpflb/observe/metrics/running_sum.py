# SPDX-License-Identifier: Apache-2.0
"""Sums that only grow, of counters in the kernel that come, go and begin at 0 again."""

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from operator import add, lt
from typing import Generic, TypeVar

from ebpflb.dataplane.view.sums import Sums

_Group = TypeVar("_Group", bound=Hashable)


class _Part:
    """One counter. before: what it had counted when it last began at 0."""

    __slots__ = ("before", "last", "look", "place")

    def __init__(self, place: int, counts: Sums) -> None:
        self.place = place
        self.last = counts
        self.before: Sums = ()
        self.look = 0

    def take(self, place: int, counts: Sums) -> None:
        if counts == self.last and place == self.place:
            return
        if place != self.place or any(map(lt, counts, self.last)):
            self.before = _sum(self.before, self.last)
        self.place, self.last = place, counts

    def take_rest(self, counts: Sums) -> None:
        """What it had counted in the end."""
        if not any(map(lt, counts, self.last)):
            self.last = counts

    @property
    def total(self) -> Sums:
        return _sum(self.before, self.last)


class RunningSums(Generic[_Group]):
    """Of groups of counters. A counter that is gone stays in the sum of its group.

    It takes no room any more once somebody else has its place.
    """

    def __init__(self) -> None:
        self._groups: dict[_Group, dict[Hashable, _Part]] = {}
        # Of each group what those had counted whose place somebody else has.
        self._past: dict[_Group, Sums] = {}
        self._look = 0

    @property
    def places(self) -> int:
        """How many places there are up to the last that a counter had."""
        parts = (part.place for group in self._groups.values() for part in group.values())
        return max(parts, default=-1) + 1

    def look(self) -> None:
        """A new look begins: `see()` is called for each counter that is there."""
        self._look += 1

    def see(self, group: _Group, key: Hashable, place: int, counts: Sums) -> None:
        """A counter has this value; another place, or less than before: it began anew."""
        parts = self._groups.setdefault(group, {})
        part = parts.get(key)
        if part is None:
            part = parts[key] = _Part(place, counts)
        else:
            part.take(place, counts)
        part.look = self._look

    def see_gone(self, counts: Sequence[Sums], used: Container[int]) -> None:
        """Look once more at what is gone: its place keeps its counts until somebody uses it."""
        for group, parts in self._groups.items():
            gone = [(key, part) for key, part in parts.items() if part.look != self._look]
            for key, part in gone:
                if part.place in used:
                    self._past[group] = _sum(self._past.get(group, ()), part.total)
                    del parts[key]
                elif part.place < len(counts):
                    part.take_rest(counts[part.place])

    def forget(self, is_gone: Callable[[_Group], bool]) -> None:
        """Drop groups."""
        gone = [group for group in self._groups if is_gone(group)]
        for group in gone:
            del self._groups[group]
            self._past.pop(group, None)

    def totals(self) -> Iterator[tuple[_Group, Sums]]:
        """The sum of each group."""
        for group, parts in self._groups.items():
            total = self._past.get(group, ())
            for part in parts.values():
                total = _sum(total, part.total)
            yield group, total


def _sum(one: Sums, other: Sums) -> Sums:
    return tuple(map(add, one, other)) if one else other

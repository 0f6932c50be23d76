# SPDX-License-Identifier: Apache-2.0
"""An array map and its local copy: only differences are written."""

from array import array
from collections.abc import Iterator, Sequence
from sys import byteorder
from typing import Literal

from ebpflb.dataplane.kernel.maps import BpfMap

_WORD = 8
_MANY = 4096


def column(
    values: bytes | bytearray, width: int, offset: int, typecode: Literal["H", "I", "Q"] = "I"
) -> Sequence[int]:
    """The number at `offset` in each of the concatenated elements of `width` bytes."""
    numbers = memoryview(values).cast(typecode)
    return numbers[offset // numbers.itemsize :: width // numbers.itemsize]


class Mirror:
    """Elements by index, as bytes. `flush()` writes what was set, in the same order.

    Much of it may be written earlier: set elements that must not be visible yet only after flushing
    those that come first. The copy ends after the last used element; everything beyond is zero.
    """

    def __init__(self, target: BpfMap) -> None:
        self.size = target.max_entries
        self._target = target
        self._width = target.value_size
        self._values = bytearray()
        self._known = self.size
        self._forget()

    def load(self, length: int | None = None) -> None:
        """Read the map again, at least `length` elements; forget unwritten changes."""
        self._forget()
        self._values.clear()
        self._known = 0
        for chunk in self._target.chunks():
            if length is not None and self._known >= length:
                break
            if chunk.values.count(0) < len(chunk.values):
                self._put(self._known * self._width, chunk.values)
            self._known += chunk.size

    def differences(self) -> Iterator[bool]:
        """Whether the next elements, if known, differ from the copy; read at each step."""
        first = 0
        for chunk in self._target.chunks(_MANY):
            length = min(chunk.size, self._known - first)
            if length <= 0:
                return
            yield chunk.values[: length * self._width] != self.span(first, length)
            first += chunk.size

    @property
    def is_blank(self) -> bool:
        """Whether every element is zero."""
        return self._values.count(0) == len(self._values)

    def __getitem__(self, index: int) -> bytes:
        return self.span(index, 1)

    def span(self, first: int, length: int) -> bytes:
        """`length` concatenated elements."""
        width = self._width
        found = bytes(self._values[first * width : (first + length) * width])
        return found.ljust(length * width, b"\0")

    def column(self, offset: int, typecode: Literal["H", "I", "Q"] = "I") -> Sequence[int]:
        """The number at `offset` bytes in each element of the copy, which may end early.

        `typecode` is its type in `struct`. While the result is in use, only elements within the
        copy may be set.
        """
        return column(self._values, self._width, offset, typecode)

    def set(self, index: int, value: bytes) -> None:
        """Set one element, unless it is known to have that value."""
        self._set(index, value, 1)

    def set_span(self, first: int, values: bytes) -> None:
        """Set adjacent elements, unless all are known to have those values."""
        self._set(first, values, len(values) // self._width)

    def _set(self, first: int, values: bytes, length: int) -> None:
        behind = first + length
        if behind <= self._known and self.span(first, length) == values:
            return
        self._put(first * self._width, values)
        if first <= self._known:
            self._known = max(self._known, behind)
        self._indices.extend(range(first, behind))
        self._pending += values
        if len(self._indices) >= _MANY:
            self.flush()

    def _put(self, start: int, values: bytes) -> None:
        self._values.extend(bytes(max(0, start - len(self._values))))
        self._values[start : start + len(values)] = values

    def flush(self) -> None:
        """Write what was set. After a MapError, `load()` finds out what was written."""
        if self._indices:
            self._target.update_packed(self._indices.tobytes(), bytes(self._pending))
            self._forget()

    def _forget(self) -> None:
        self._indices, self._pending = array("I"), bytearray()


class Words(Mirror):
    """A mirror of an array of u64, whose elements change atomically for every reader."""

    def word(self, index: int) -> int:
        """One element as a number."""
        return int.from_bytes(self[index], byteorder)

    def set_word(self, index: int, value: int) -> None:
        """Set one element to a number."""
        self.set(index, value.to_bytes(_WORD, byteorder))

# SPDX-License-Identifier: Apache-2.0
"""The maps of bpf/maps.h without a kernel, for tests.

They refuse what the kernel refuses, with the same errno: keys and values of another size, an
index out of range, a full hash.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from errno import E2BIG, EEXIST, EINVAL, ENOENT
from itertools import islice
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet, split, split_chunks
from ebpflb.dataplane.kernel.uapi import Exist, MapType
from ebpflb.dataplane.layout.capacity import MAPS, MapSpec, Sizes
from ebpflb.errors import MapError

_QUICK = 4096


class MapShape(NamedTuple):
    """One line of bpf/maps.h; the value size is that of one CPU."""

    kind: MapType
    key_size: int
    value_size: int
    max_entries: int


SPECS: Mapping[str, MapShape] = {
    name: MapShape(spec.kind, *spec.shape(Sizes())) for name, spec in MAPS.items()
}
"""All maps, in the default sizes."""


class OneByOne:
    """Batch operations in terms of a map's other methods."""

    def update_batch(self: BpfMap, elements: Sequence[tuple[bytes, bytes]]) -> None:
        """See BpfMap."""
        for key, value in elements:
            self.update(key, value)

    def update_packed(self: BpfMap, keys: bytes, values: bytes) -> None:
        """See BpfMap."""
        self.update_batch(list(split(self, keys, values)))

    def delete_batch(self: BpfMap, keys: Sequence[bytes]) -> None:
        """See BpfMap; refused as `delete()` is."""
        for key in keys:
            self.delete(key)

    def items(self: BpfMap) -> Iterator[tuple[bytes, bytes]]:
        """See BpfMap."""
        return split_chunks(self)


class MemoryHash(OneByOne):
    """A hash map, also for LRU: it refuses where the kernel evicts the oldest.

    Also for tries: it finds a key where the kernel finds the longest prefix of it. Also for ring
    buffers, which have no elements.
    """

    def __init__(self, name: str, shape: MapShape, cpus: int = 1) -> None:
        """`cpus` above 1 makes it a per-CPU hash."""
        self.name = name
        self.key_size, self.max_entries, self.cpus = shape.key_size, shape.max_entries, cpus
        self.value_size = shape.value_size * cpus
        self._values: dict[bytes, bytes] = {}

    def lookup(self, key: bytes) -> bytes | None:
        """See BpfMap."""
        _check(self, "lookup", key)
        return self._values.get(key)

    def update(self, key: bytes, value: bytes, *, exist: Exist = Exist.ANY) -> None:
        """See BpfMap."""
        _check(self, "update", key, value)
        found = key in self._values
        if found and exist is Exist.NO:
            raise MapError(self.name, "update", EEXIST)
        if not found and exist is Exist.YES:
            raise MapError(self.name, "update", ENOENT)
        if not found and len(self._values) >= self.max_entries:
            raise MapError(self.name, "update", E2BIG)
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        """See BpfMap."""
        _check(self, "delete", key)
        return self._values.pop(key, None) is not None

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        """See BpfMap."""
        keys = iter(list(self._values))
        while some := list(islice(keys, limit or _QUICK)):
            left = [key for key in some if key in self._values]
            values = b"".join(self._values[key] for key in left)
            yield Chunk(b"".join(left), values, len(left))


class MemoryArray(OneByOne):
    """An array, or a per-CPU array: all elements exist from the start and are zero."""

    def __init__(self, name: str, shape: MapShape, cpus: int = 1) -> None:
        """`cpus` above 1 makes it a per-CPU array."""
        self.name = name
        self.key_size, self.max_entries, self.cpus = shape.key_size, shape.max_entries, cpus
        self.value_size = shape.value_size * cpus
        self._values = bytearray(self.value_size * self.max_entries)

    def lookup(self, key: bytes) -> bytes | None:
        """See BpfMap."""
        _check(self, "lookup", key)
        start = int.from_bytes(key, byteorder) * self.value_size
        return bytes(self._values[start : start + self.value_size]) or None

    def update(self, key: bytes, value: bytes, *, exist: Exist = Exist.ANY) -> None:
        """See BpfMap."""
        _check(self, "update", key, value)
        if exist is Exist.NO:
            raise MapError(self.name, "update", EEXIST)
        index = int.from_bytes(key, byteorder)
        if index >= self.max_entries:
            raise MapError(self.name, "update", E2BIG)
        self._values[index * self.value_size : (index + 1) * self.value_size] = value

    def delete(self, key: bytes) -> bool:
        """Refused: an array has all its elements."""
        _check(self, "delete", key)
        raise MapError(self.name, "delete", EINVAL)

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        """See BpfMap."""
        step = limit or _QUICK
        for first in range(0, self.max_entries, step):
            size = min(step, self.max_entries - first)
            keys = array("I", range(first, first + size)).tobytes()
            values = self._values[first * self.value_size : (first + size) * self.value_size]
            yield Chunk(keys, bytes(values), size)


def memory_maps(sizes: Mapping[str, int] | None = None, *, cpus: int = 2) -> MapSet:
    """All maps, empty; `sizes` replaces the number of entries of the maps it names."""
    other = sizes or {}
    return {
        name: _memory_map(name, spec, other.get(name, SPECS[name].max_entries), cpus)
        for name, spec in MAPS.items()
    }


def _memory_map(name: str, spec: MapSpec, entries: int, cpus: int) -> BpfMap:
    kind = MemoryArray if spec.is_array else MemoryHash
    shape = SPECS[name]._replace(max_entries=entries)
    return kind(name, shape, cpus if spec.is_per_cpu else 1)


def _check(table: BpfMap, operation: str, key: bytes, value: bytes | None = None) -> None:
    right_key = len(key) == table.key_size
    if not right_key or (value is not None and len(value) != table.value_size):
        raise MapError(table.name, operation, EINVAL)

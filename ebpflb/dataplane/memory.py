# SPDX-License-Identifier: Apache-2.0
"""The maps of bpf/maps.h without a kernel: for tests and dry runs.

They refuse what the kernel refuses, with the same errno: keys and values of another size, an
index out of range, a full hash.
"""

import ctypes
from array import array
from collections.abc import Iterator, Mapping, Sequence
from errno import E2BIG, EEXIST, EINVAL, ENOENT
from itertools import islice
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane import structs
from ebpflb.dataplane.maps import BpfMap, Chunk, MapSet, split_chunks
from ebpflb.dataplane.uapi import Exist, MapType
from ebpflb.errors import MapError

_QUICK = 4096
_ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)


class MapSpec(NamedTuple):
    """One line of bpf/maps.h with the size of bpf/config.h; the value size is that of one CPU."""

    kind: MapType
    key_size: int
    value_size: int
    max_entries: int


def _spec(kind: MapType, key: type, value: type, max_entries: int) -> MapSpec:
    return MapSpec(kind, ctypes.sizeof(key), ctypes.sizeof(value), max_entries)


_HASH, _LRU, _ARRAY = MapType.HASH, MapType.LRU_HASH, MapType.ARRAY
_PER_CPU = MapType.PERCPU_ARRAY
_u32, _u64 = structs.u32, structs.u64

SPECS: Mapping[str, MapSpec] = {
    "lb_frontends": _spec(_HASH, structs.FrontendKey, _u32, 4096),
    "lb_current": _spec(_ARRAY, _u32, _u64, 4096),
    "lb_descs": _spec(_ARRAY, _u32, structs.Desc, 8192),
    "lb_slots": _spec(_ARRAY, _u32, _u32, 65536),
    "lb_backends": _spec(_ARRAY, _u32, structs.Backend, 16384),
    "lb_addrs": _spec(_HASH, structs.Addr, _u32, 8192),
    "lb_addr_flags": _spec(_ARRAY, _u32, _u64, 8192),
    "lb_names": _spec(_HASH, _u32, structs.Name, 8192),
    "lb_devices": _spec(_HASH, _u32, structs.Device, 4096),
    "lb_netns": _spec(_HASH, _u64, structs.Netns, 4096),
    "lb_settings": _spec(_ARRAY, _u32, structs.Settings, 1),
    "lb_conntrack": _spec(_HASH, structs.Tuple, structs.Conntrack, 131072),
    "lb_ct_short": _spec(_LRU, structs.Tuple, structs.Conntrack, 65536),
    "lb_sockets": _spec(_LRU, structs.SocketKey, structs.Socket, 65536),
    "lb_count_front": _spec(_PER_CPU, _u32, structs.Counts, 4096),
    "lb_count_back": _spec(_PER_CPU, _u32, structs.Counts, 16384),
    "lb_count_drop": _spec(_PER_CPU, _u32, _u64, max(structs.DropReason) + 1),
    "lb_meta": _spec(_ARRAY, _u32, structs.Meta, 1),
}


class MemoryHash:
    """A hash. One for LRU too: it refuses where the kernel forgets the oldest."""

    def __init__(self, name: str, spec: MapSpec) -> None:
        self.name = name
        self.key_size, self.value_size, self.max_entries = spec[1:]
        self.cpus = 1
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

    def update_batch(self, elements: Sequence[tuple[bytes, bytes]]) -> None:
        """See BpfMap."""
        for key, value in elements:
            self.update(key, value)

    def delete_batch(self, keys: Sequence[bytes]) -> None:
        """See BpfMap."""
        for key in keys:
            self.delete(key)

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        """See BpfMap."""
        keys = iter(list(self._values))
        while some := list(islice(keys, limit or _QUICK)):
            left = [key for key in some if key in self._values]
            values = b"".join(self._values[key] for key in left)
            yield Chunk(b"".join(left), values, len(left))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See BpfMap."""
        return split_chunks(self)


class MemoryArray:
    """An array, or a per-CPU array: all elements exist from the start and are zero."""

    def __init__(self, name: str, spec: MapSpec, cpus: int = 1) -> None:
        """`cpus` above 1 makes it a per-CPU array."""
        self.name = name
        self.key_size, self.max_entries, self.cpus = spec.key_size, spec.max_entries, cpus
        self.value_size = spec.value_size * cpus
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

    def update_batch(self, elements: Sequence[tuple[bytes, bytes]]) -> None:
        """See BpfMap."""
        for key, value in elements:
            self.update(key, value)

    def delete_batch(self, keys: Sequence[bytes]) -> None:
        """Refused, as `delete()`."""
        for key in keys:
            self.delete(key)

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        """See BpfMap."""
        step = limit or _QUICK
        for first in range(0, self.max_entries, step):
            size = min(step, self.max_entries - first)
            keys = array("I", range(first, first + size)).tobytes()
            values = self._values[first * self.value_size : (first + size) * self.value_size]
            yield Chunk(keys, bytes(values), size)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See BpfMap."""
        return split_chunks(self)


def memory_maps(sizes: Mapping[str, int] | None = None, *, cpus: int = 2) -> MapSet:
    """All maps, empty; `sizes` replaces the number of entries of the maps it names."""
    other = sizes or {}
    return {
        name: _memory_map(name, spec._replace(max_entries=other.get(name, spec.max_entries)), cpus)
        for name, spec in SPECS.items()
    }


def _memory_map(name: str, spec: MapSpec, cpus: int) -> BpfMap:
    if spec.kind in _ARRAYS:
        return MemoryArray(name, spec, cpus if spec.kind is _PER_CPU else 1)
    return MemoryHash(name, spec)


def _check(table: BpfMap, operation: str, key: bytes, value: bytes | None = None) -> None:
    right_key = len(key) == table.key_size
    if not right_key or (value is not None and len(value) != table.value_size):
        raise MapError(table.name, operation, EINVAL)

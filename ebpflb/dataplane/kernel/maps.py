# SPDX-License-Identifier: Apache-2.0
"""BPF maps as typed objects: the interface of all maps, and the kernel's pinned ones.

Keys and values are bytes in the layout of bpf/types.h. A per-CPU map's value is the concatenation
of all possible CPUs' values, each rounded up to 8 bytes; `value_size` covers them all.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import EINVAL, ENOSPC, EOPNOTSUPP
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import BpfObject, Exist, MapType
from ebpflb.errors import MapError, PinError

_CHUNK_BYTES = 1 << 20
# The kernel's internal ENOTSUPP, returned for batch operations that a map type lacks.
_ENOTSUPP = 524
_NO_BATCH = (_ENOTSUPP, EOPNOTSUPP, EINVAL)
_PER_CPU = (MapType.PERCPU_HASH, MapType.PERCPU_ARRAY, MapType.LRU_PERCPU_HASH)

_Result = TypeVar("_Result")


class Chunk(NamedTuple):
    """`size` elements: their concatenated keys, and their values in the same order."""

    keys: bytes
    values: bytes
    size: int


class BpfMap(Protocol):
    """A map. Every method raises MapError; `name` is the one in bpf/maps.h.

    `cpus` is how many values are concatenated in one: 1 unless the map is per CPU.
    """

    name: str
    key_size: int
    value_size: int
    max_entries: int
    cpus: int

    def lookup(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def update(self, key: bytes, value: bytes, *, exist: Exist = Exist.ANY) -> None:
        """Set one element. E2BIG if a hash is full or an index is out of range."""

    def delete(self, key: bytes) -> bool:
        """Delete one element; False if it was not there."""

    def update_batch(self, elements: Sequence[tuple[bytes, bytes]]) -> None:
        """Set elements in order. After an error the first ones may be set."""

    def update_packed(self, keys: bytes, values: bytes) -> None:
        """Like `update_batch()`, with concatenated keys and values."""

    def delete_batch(self, keys: Sequence[bytes]) -> None:
        """Delete elements in order; missing ones are ignored."""

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        """All elements, about `limit` at a time, or as many as can be read efficiently.

        Elements may be deleted between two chunks; elements added meanwhile may be missed.
        """

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All elements one by one, with the guarantees of `chunks()`."""


MapSet = Mapping[str, BpfMap]
"""The maps of bpf/maps.h by name."""


class KernelMap:
    """A kernel map. It owns its descriptor, and closes it in `close()` or when collected."""

    def __init__(self, fd: int, name: str = "", *, batch: bool = True) -> None:
        """`name`: overrides the kernel's. `batch=False`: as on a kernel without batch calls."""
        facts = libbpf.map_info(fd)
        per_cpu = facts.type in _PER_CPU
        stride = facts.value_size + -facts.value_size % 8 if per_cpu else facts.value_size
        self.name = name or facts.name.decode()
        self.key_size: int = facts.key_size
        self.max_entries: int = facts.max_entries
        self.cpus = libbpf.possible_cpus() if per_cpu else 1
        self.value_size: int = stride * self.cpus
        self.fd = fd
        self._batch = batch
        self._has_elements = facts.type != MapType.RINGBUF
        self._quick = max(256, _CHUNK_BYTES // max(1, self.key_size + self.value_size))
        self._closer = weakref.finalize(self, os.close, fd)

    def close(self) -> None:
        """Close the descriptor; further calls do nothing."""
        self._closer()

    def lookup(self, key: bytes) -> bytes | None:
        return self._run("lookup", libbpf.map_lookup, key, self.value_size)

    def update(self, key: bytes, value: bytes, *, exist: Exist = Exist.ANY) -> None:
        self._run("update", libbpf.map_update, key, value, exist)

    def delete(self, key: bytes) -> bool:
        return self._run("delete", libbpf.map_delete, key)

    def update_batch(self, elements: Sequence[tuple[bytes, bytes]]) -> None:
        values = b"".join(value for _, value in elements)
        self.update_packed(b"".join(key for key, _ in elements), values)

    def update_packed(self, keys: bytes, values: bytes) -> None:
        while self._batch and keys:
            count = len(keys) // self.key_size
            done = self._try_batch("update", libbpf.map_update_batch, keys, values, count)
            keys, values = keys[done * self.key_size :], values[done * self.value_size :]
        for key, value in split(self, keys, values):
            self.update(key, value)

    def delete_batch(self, keys: Sequence[bytes]) -> None:
        done = 0
        while self._batch and done < len(keys):
            rest = keys[done:]
            gone = self._try_batch("delete", libbpf.map_delete_batch, b"".join(rest), len(rest))
            # The kernel stops at a missing key, which counts as deleted.
            done += gone + 1 if self._batch else 0
        for key in keys[done:]:
            self.delete(key)

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        # Ring buffers have no elements.
        if not self._has_elements:
            return
        limit = min(limit or self._quick, self.max_entries)
        cursor: bytes | None = None
        while self._batch:
            batch = self._next_batch(cursor, limit)
            if batch is None:
                break
            if batch.size:
                yield Chunk(batch.keys, batch.values, batch.size)
            cursor = batch.cursor
            if cursor is None:
                return
        yield from self._single_chunks(limit)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return split_chunks(self)

    def _next_batch(self, cursor: bytes | None, limit: int) -> libbpf.Batch | None:
        sizes = (self.key_size, self.value_size)
        try:
            return libbpf.map_lookup_batch(self.fd, cursor, limit, *sizes)
        except OSError as error:
            if error.errno == ENOSPC and limit <= self.max_entries:
                return self._next_batch(cursor, 2 * limit)
            if error.errno in _NO_BATCH and cursor is None:
                self._batch = False
                return None
            raise self._error("lookup batch", error) from error

    def _single_chunks(self, limit: int) -> Iterator[Chunk]:
        elements = self._single_items()
        while some := list(islice(elements, limit)):
            keys, values = zip(*some, strict=True)
            yield Chunk(b"".join(keys), b"".join(values), len(some))

    def _single_items(self) -> Iterator[tuple[bytes, bytes]]:
        key = self._run("next key", libbpf.map_next_key, None, self.key_size)
        while key is not None:
            following = self._run("next key", libbpf.map_next_key, key, self.key_size)
            value = self.lookup(key)
            if value is not None:
                yield key, value
            key = following

    def _try_batch(self, operation: str, call: Callable[..., int], *args: object) -> int:
        try:
            return call(self.fd, *args)
        except OSError as error:
            if error.errno not in _NO_BATCH:
                raise self._error(operation, error) from error
            self._batch = False
            return 0

    def _run(self, operation: str, call: Callable[..., _Result], *args: object) -> _Result:
        try:
            return call(self.fd, *args)
        except OSError as error:
            raise self._error(operation, error) from error

    def _error(self, operation: str, error: OSError) -> MapError:
        return MapError(self.name, operation, error.errno or 0)


def used(target: BpfMap) -> int:
    """How many elements it has. MapError."""
    return sum(chunk.size for chunk in target.chunks())


def split_chunks(source: BpfMap) -> Iterator[tuple[bytes, bytes]]:
    """The elements of a map one by one, read in chunks."""
    for keys, values, _ in source.chunks():
        yield from split(source, keys, values)


def split(target: BpfMap, keys: bytes, values: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Split concatenated elements."""
    key_size, value_size = target.key_size, target.value_size
    for at in range(len(keys) // key_size):
        key = keys[at * key_size : (at + 1) * key_size]
        yield key, values[at * value_size : (at + 1) * value_size]


def open_maps(directory: Path) -> MapSet:
    """The maps pinned in `directory` by name. PinError if it cannot be read."""
    try:
        paths = sorted(directory.iterdir())
        fds = ((path.name, libbpf.obj_get(path, BpfObject.MAP)) for path in paths)
        return {name: KernelMap(fd, name) for name, fd in fds}
    except OSError as error:
        place = error.filename or directory
        raise PinError(f"{place}: cannot open the pinned map: {error.strerror}") from error

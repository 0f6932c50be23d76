# SPDX-License-Identifier: Apache-2.0
"""The numbers of per-CPU counters, added up."""

from collections.abc import Iterator

from ebpflb.dataplane.kernel.maps import BpfMap, Chunk

Sums = tuple[int, ...]

_NUMBER_SIZE = 8


def sums(counters: BpfMap, length: int | None = None) -> Iterator[Sums]:
    """For each index the numbers of its struct, each the sum over all CPUs. MapError.

    length: no more than the first so many indices. Most count nothing, and cost next to nothing.
    """
    left = counters.max_entries if length is None else min(length, counters.max_entries)
    if left <= 0:
        return
    for chunk in counters.chunks():
        yield from _chunk_sums(counters, chunk, min(left, chunk.size))
        left -= chunk.size
        if left <= 0:
            return


def _chunk_sums(counters: BpfMap, chunk: Chunk, size: int) -> Iterator[Sums]:
    width, values = counters.value_size, chunk.values
    blank = bytes(width)
    nothing = (0,) * (width // counters.cpus // _NUMBER_SIZE)
    if values.count(0) == len(values):
        yield from (nothing for _ in range(size))
        return
    rows = [values[at : at + width] for at in range(0, size * width, width)]
    added = _added(b"".join([row for row in rows if row != blank]), width, counters.cpus)
    for row in rows:
        yield nothing if row == blank else next(added)


def _added(values: bytes, width: int, cpus: int) -> Iterator[Sums]:
    """Column by column, which is quicker than row by row."""
    numbers = memoryview(values).cast("Q")
    row = width // _NUMBER_SIZE
    stride = row // cpus
    columns = [numbers[at::row].tolist() for at in range(row)]
    totals = (map(sum, zip(*columns[at::stride], strict=True)) for at in range(stride))
    return zip(*totals, strict=True)

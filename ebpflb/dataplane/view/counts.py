# SPDX-License-Identifier: Apache-2.0
"""The counters of all CPUs, added up."""

from collections.abc import Iterator, Mapping

from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.layout.structs import DropKey

Sums = tuple[int, ...]

_NUMBER_SIZE = 8
_REASONS = frozenset(DropReason)


def sums(counters: BpfMap, length: int | None = None) -> Iterator[Sums]:
    """For each index the numbers of its struct, each the sum over all CPUs. MapError.

    length: of the first so many indices only. Most have counted nothing, and cost next to nothing.
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
    """Adds column by column, which is faster than row by row."""
    numbers = memoryview(values).cast("Q")
    row = width // _NUMBER_SIZE
    stride = row // cpus
    columns = [numbers[at::row].tolist() for at in range(row)]
    totals = (map(sum, zip(*columns[at::stride], strict=True)) for at in range(stride))
    return zip(*totals, strict=True)


def read_drops(maps: MapSet) -> Mapping[tuple[DropReason, int], int]:
    """How often each reason occurred, by reason and ifindex or DropPlace. MapError.

    A reason that this version does not know is left out.
    """
    found: dict[tuple[DropReason, int], int] = {}
    for key, value in maps["lb_count_drop"].items():
        place = DropKey.from_buffer_copy(key)
        if place.reason in _REASONS:
            found[DropReason(place.reason), place.ifindex] = sum(memoryview(value).cast("Q"))
    return found


def sum_drops(drops: Mapping[tuple[DropReason, int], int]) -> Mapping[DropReason, int]:
    """How often each reason occurred, at all devices together."""
    totals = dict.fromkeys(DropReason, 0)
    for (reason, _), count in drops.items():
        totals[reason] += count
    return totals

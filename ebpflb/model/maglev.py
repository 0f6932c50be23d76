# SPDX-License-Identifier: Apache-2.0
"""Lookup tables for consistent hashing: a slot names the same backend on every node.

Maglev (Eisenbud et al., NSDI 2016, section 3.4): in turn, each backend takes the next free slot of
its own permutation of the table. So slot counts differ by at most one, and when a backend goes, few
slots besides its own change hands. With weights, each has as many turns as slots.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import cycle, islice
from math import isqrt

from ebpflb.model.extensions.apportionment import interleaved
from ebpflb.model.plan import Backend


def lookup_table(backends: Sequence[Backend], size: int) -> Sequence[int]:
    """For each slot, the index of its backend in `backends`, which are sorted and not empty.

    size: a prime, at least the number of backends, or some get no slot; if their weights differ,
    the sum of these. The result depends on weights and addresses alone, and on the ports of
    backends that share one: so a Service with many ports has one table, which takes some
    milliseconds to build.
    """
    names, before = [], None
    for each in backends:
        is_first = each.address != before
        names.append(each.address if is_first else each.address + each.port.to_bytes(2, "big"))
        before = each.address
    weights = tuple(each.weight for each in backends)
    return _table(tuple(names), weights if len(set(weights)) > 1 else (), size)


@lru_cache(maxsize=8)
def _table(names: tuple[bytes, ...], weights: tuple[int, ...], size: int) -> Sequence[int]:
    permutations = [_permutation(each, size) for each in names]
    slots = [-1] * size
    # A turn skips size / free slots on average: too slow near the end, which is filled differently.
    order = iter(interleaved(weights)) if weights else cycle(range(len(names)))
    _fill_in_turn(slots, permutations, islice(order, size - isqrt(size)))
    _fill_the_rest(slots, permutations, order)
    return tuple(slots)


def _permutation(name: bytes, size: int) -> tuple[int, int]:
    """The backend's first slot, and the step to the next one."""
    digest = blake2b(name, digest_size=16).digest()
    offset, skip = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    return offset % size, skip % (size - 1) + 1


def _fill_in_turn(
    slots: list[int], permutations: Sequence[tuple[int, int]], order: Iterable[int]
) -> None:
    size = len(slots)
    places = [offset for offset, _ in permutations]
    skips = [skip for _, skip in permutations]
    for backend in order:
        at, skip = places[backend], skips[backend]
        while slots[at] >= 0:
            at += skip
            if at >= size:
                at -= size
        slots[at] = backend
        places[backend] = at


def _fill_the_rest(
    slots: list[int], permutations: Sequence[tuple[int, int]], order: Iterator[int]
) -> None:
    """Each takes the first free slot of its permutation."""
    size = len(slots)
    free = [slot for slot, taken in enumerate(slots) if taken < 0]
    while free:
        backend = next(order)
        offset, skip = permutations[backend]
        steps = pow(skip, -1, size)
        first = min((slot - offset) * steps % size for slot in free)
        slot = (offset + first * skip) % size
        slots[slot] = backend
        free.remove(slot)

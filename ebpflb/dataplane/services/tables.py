# SPDX-License-Identifier: Apache-2.0
"""The table behind the backends of a range: that of a hash, or the turns of weighted backends."""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ebpflb.model.address import Address
from ebpflb.model.extensions.apportionment import interleaved
from ebpflb.model.maglev import lookup_table
from ebpflb.model.plan import Backend


def table_of(backends: Sequence[Backend], lookup_slots: int) -> Sequence[int]:
    """For each slot, the index in `backends`. lookup_slots: 0 for weighted ones without a hash."""
    if lookup_slots:
        return lookup_table(backends, lookup_slots)
    return list(interleaved([each.weight for each in backends]))


def compared_weights(
    choices: Iterable[Sequence[Backend]],
) -> Mapping[tuple[Address, int], int]:
    """By address and port, for a scheduler that compares connections: one weight for each.

    That in the largest of the choices in which weights differ. The others need it, too, where it
    may differ a little: a share of a label is divided among the backends of each choice.
    """
    found: dict[tuple[Address, int], int] = {}
    for backends in sorted(choices, key=lambda each: (-len(each), each)):
        if len({each.weight for each in backends}) > 1:
            found = {**{each[:2]: each.weight for each in backends}, **found}
    return found


def weights_in(table: bytes, backends: Sequence[int], *, is_hashed: bool) -> Sequence[int]:
    """The weight of each of the backends (indices) in a table of indices; 1 without a table.

    Those in the lookup table of a hash have as many slots as any other, or one more, if their
    weights are the same.
    """
    slots = Counter(array("I", table))
    found = [slots[each] for each in backends]
    differ = max(found, default=0) - min(found, default=0) > is_hashed
    return found if slots and differ else [1] * len(found)

# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: as in the paper, evenly filled, identical on all nodes, and stable."""

import random
from collections import Counter
from hashlib import blake2b
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.address import Address
from ebpflb.model.extensions.apportionment import as_slots
from ebpflb.model.maglev import lookup_table
from ebpflb.model.plan import Backend
from ebpflb.words.scheduler import TABLE_SIZE

SMALL = 251
ADDRESSES = st.sampled_from([bytes(16), b"\1" * 16]) | st.binary(min_size=16, max_size=16)
BACKENDS = st.sets(st.tuples(ADDRESSES, st.integers(1, 65535)), min_size=1, max_size=40)


def backends(number: int) -> list[Backend]:
    """Pods in order."""
    return [
        Backend(Address(bytes(10) + b"\xff\xff\x0a\x01" + each.to_bytes(2)), 8080, True, False)
        for each in range(number)
    ]


def by_the_paper(offered: list[Backend], size: int) -> list[int]:
    """Figure 1 of section 3.4, word for word; a backend's name is its address, if it is the first.

    The others at one address have their ports in their names.
    """
    permutations = []
    for index, each in enumerate(offered):
        is_first = index == 0 or offered[index - 1].address != each.address
        name = each.address + (b"" if is_first else each.port.to_bytes(2, "big"))
        digest = blake2b(name, digest_size=16).digest()
        offset = int.from_bytes(digest[:8], "big") % size
        skip = int.from_bytes(digest[8:], "big") % (size - 1) + 1
        permutations.append([(offset + j * skip) % size for j in range(size)])
    following, entry = [0] * len(offered), [-1] * size
    for turn in count():
        i = turn % len(offered)
        while entry[permutations[i][following[i]]] >= 0:
            following[i] += 1
        entry[permutations[i][following[i]]] = i
        if turn + 1 == size:
            return entry
    raise AssertionError


@given(BACKENDS, st.sampled_from([2, 3, 7, 31, SMALL]))
def test_tables_are_those_of_the_paper(places: set[tuple[bytes, int]], size: int):
    offered = sorted(Backend(Address(raw), port, False, False) for raw, port in places)
    assert [*lookup_table(offered, size)] == by_the_paper(offered, size)


@given(BACKENDS)
def test_each_backend_has_as_many_slots_as_any_other_but_for_one(places: set[tuple[bytes, int]]):
    offered = sorted(Backend(Address(raw), port, False, False) for raw, port in places)
    shares = Counter(lookup_table(offered, SMALL)).values()
    assert len(shares) == len(offered)
    assert max(shares) - min(shares) <= 1


def test_only_addresses_count_and_ports_where_they_are_shared():
    here = backends(20)
    elsewhere = [each._replace(local=False, terminating=True) for each in here]
    assert lookup_table(here, SMALL) == lookup_table(elsewhere, SMALL)
    other_port = [each._replace(port=81) for each in here]
    assert lookup_table(here, SMALL) == lookup_table(other_port, SMALL)
    shared = [each._replace(port=80 + number) for each in here for number in range(2)]
    moved_port = [*shared[:-1], shared[-1]._replace(port=90)]
    assert lookup_table(shared, SMALL) != lookup_table(moved_port, SMALL)


def moved(offered: list[Backend], gone: int) -> float:
    """The share of slots that lead elsewhere although their backend is still there."""
    rest = offered[:gone] + offered[gone + 1 :]
    before, after = lookup_table(offered, TABLE_SIZE), lookup_table(rest, TABLE_SIZE)
    pairs = zip(before, after, strict=True)
    return sum(old != gone and offered[old] != rest[new] for old, new in pairs) / TABLE_SIZE


@pytest.mark.parametrize("number", [2, 10, 100])
def test_when_one_goes_less_than_two_in_a_hundred_move_beyond_the_necessary(number: int):
    offered = backends(number)
    sample = random.Random(0).sample(range(number), min(number, 5))
    assert sum(moved(offered, gone) for gone in sample) / len(sample) < 0.02


def weighted(*weights: int) -> list[Backend]:
    pods = zip(backends(len(weights)), as_slots(weights, TABLE_SIZE), strict=True)
    return [each._replace(weight=weight) for each, weight in pods]


def test_a_backend_has_as_many_slots_as_its_weight():
    offered = weighted(90, 10, 55)
    shares = Counter(lookup_table(offered, TABLE_SIZE))
    assert [shares[each] for each in range(3)] == [each.weight for each in offered]


@pytest.mark.parametrize(
    ("before", "after", "must"), [(90, 80, 0.1), (50, 51, 0.01), (99, 50, 0.49)]
)
def test_other_weights_move_little_more_than_they_must(before: int, after: int, must: float):
    old, new = weighted(before, 100 - before), weighted(after, 100 - after)
    pairs = zip(lookup_table(old, TABLE_SIZE), lookup_table(new, TABLE_SIZE), strict=True)
    share = sum(was != now for was, now in pairs) / TABLE_SIZE
    assert must - 0.001 <= share <= must + 0.03


def test_a_change_of_one_weight_of_many_moves_few_others():
    old, new = weighted(*[10] * 49, 10), weighted(*[10] * 49, 30)
    pairs = [*zip(lookup_table(old, TABLE_SIZE), lookup_table(new, TABLE_SIZE), strict=True)]
    between_others = sum(was != now and 49 not in (was, now) for was, now in pairs) / TABLE_SIZE
    assert between_others < 0.06

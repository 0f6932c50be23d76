# SPDX-License-Identifier: Apache-2.0
"""The weight of each endpoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.gateway.policy.shares import HEAVIEST, BackendSize, endpoint_weights


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [
        ([], []),
        ([(5, 7)], [1]),
        ([(0, 2)], [0]),
        ([(1, 0)], [0]),
        ([(90, 3), (10, 1)], [3, 1]),
        ([(1, 1), (1, 3)], [3, 1]),
        ([(1, 2), (0, 1), (1, 0)], [1, 0, 0]),
        ([(1_000_000, 1), (1, 1)], [HEAVIEST, 1]),
    ],
)
def test_the_smallest_numbers_that_do_it(sizes, weights):
    assert endpoint_weights([BackendSize(*each) for each in sizes]) == weights


@given(st.lists(st.tuples(st.integers(0, 1_000_000), st.integers(0, 1000)), max_size=16))
def test_shares_are_kept(sizes):
    weights = endpoint_weights([BackendSize(*each) for each in sizes])
    assert len(weights) == len(sizes)
    served = [
        (size, weight) for size, weight in zip(sizes, weights, strict=True) if size[0] and size[1]
    ]
    assert all(1 <= weight <= HEAVIEST for _, weight in served)
    assert sum(weights) == sum(weight for _, weight in served)
    heaviest = max((size[0] / size[1] for size, _ in served), default=0)
    for (asked, number), weight in served:
        is_large_enough = asked / number / heaviest * HEAVIEST >= 1
        if is_large_enough:
            exact = asked / number / heaviest * max(weights)
            assert abs(weight - exact) <= 0.5 + exact * 1e-9

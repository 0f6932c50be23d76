# SPDX-License-Identifier: Apache-2.0
"""Flow hash over client and frontend."""

from collections import Counter

import pytest

from ebpflb.dataplane.explain.flow_hash import client_hash, flow_hash, place_of
from ebpflb.model.address import Protocol, parse_address

VIP = parse_address("10.96.0.10")
CLIENT = parse_address("198.51.100.9")
UNLIKELY = 200.0
MURMUR3_OF_ZEROS = 0xFCF3D9E1
MURMUR3_OF_COUNTING = 0x61EF3B7E


def test_it_is_murmurhash3_over_words_in_network_byte_order():
    """mmh3.hash() of the same words, each turned round, with the same seed."""
    assert client_hash(parse_address("::")) == MURMUR3_OF_ZEROS
    assert client_hash(parse_address("1:203:405:607:809:a0b:c0d:e0f")) == MURMUR3_OF_COUNTING


@pytest.mark.parametrize(
    "other",
    [
        (parse_address("198.51.100.8"), 40000, (VIP, 80, 6)),
        (CLIENT, 40001, (VIP, 80, 6)),
        (CLIENT, 40000, (parse_address("10.96.0.11"), 80, 6)),
        (CLIENT, 40000, (VIP, 81, 6)),
        (CLIENT, 40000, (VIP, 80, 17)),
    ],
)
def test_everything_counts(other):
    assert flow_hash(*other) != flow_hash(CLIENT, 40000, (VIP, 80, Protocol.TCP))


@pytest.mark.parametrize("size", [2, 7, 100, 10007])
def test_ports_in_a_row_are_spread_evenly(size):
    total = 100 * min(size, 100)
    places = [place_of(flow_hash(CLIENT, 1024 + i, (VIP, 80, 6)), size) for i in range(total)]
    assert all(0 <= each < size for each in places)
    groups = min(size, 100)
    counts = Counter(each * groups // size for each in places)
    expected = total / groups
    assert sum((counts[i] - expected) ** 2 / expected for i in range(groups)) < UNLIKELY

# SPDX-License-Identifier: Apache-2.0
"""Deterministic mutations of given inputs: what libFuzzer does, without guidance."""

from collections.abc import Iterator, Sequence
from random import Random

_MOST_CHANGES = 4


def mutated(
    seed: str, given: Sequence[bytes], words: Sequence[bytes], count: int
) -> Iterator[bytes]:
    """This many: each has pieces of others, words, or a few bytes changed."""
    chance = Random(seed)
    for _ in range(count):
        made = chance.choice(given)
        for _ in range(chance.randint(1, _MOST_CHANGES)):
            first, last = sorted(chance.choices(range(len(made) + 1), k=2))
            made = made[:first] + _piece(chance, given, words, made[first:last]) + made[last:]
        yield made


def _piece(
    chance: Random, given: Sequence[bytes], words: Sequence[bytes], replaced: bytes
) -> bytes:
    match chance.randrange(4):
        case 0:
            return chance.choice(words) + replaced
        case 1:
            other = chance.choice(given)
            first, last = sorted(chance.choices(range(len(other) + 1), k=2))
            return other[first:last]
        case 2:
            return replaced[:1] + chance.randbytes(1) + replaced[2:]
        case _:
            return b""

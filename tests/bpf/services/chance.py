# SPDX-License-Identifier: Apache-2.0
"""Whether counts are plausible for random choices."""

from math import comb

# Probability of calling a plausible count implausible.
_SELDOM = 1e-12


def is_likely(count: int, draws: int, share: float) -> bool:
    """Whether a choice with this probability may come up this often, or this seldom."""
    chances = [
        comb(draws, number) * share**number * (1 - share) ** (draws - number)
        for number in range(draws + 1)
    ]
    return min(sum(chances[: count + 1]), sum(chances[count:])) >= _SELDOM

# SPDX-License-Identifier: Apache-2.0
"""Whether counts are what chance makes of them."""

from math import comb

# So seldom may a count be called unlikely that is not.
_SELDOM = 1e-12


def is_likely(count: int, draws: int, share: float) -> bool:
    """Whether what has this share of the draws may have come so often, or so seldom."""
    chances = [
        comb(draws, number) * share**number * (1 - share) ** (draws - number)
        for number in range(draws + 1)
    ]
    return min(sum(chances[: count + 1]), sum(chances[count:])) >= _SELDOM

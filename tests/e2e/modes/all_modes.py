# SPDX-License-Identifier: Apache-2.0
"""The modes of agents: all of them, and a few that cover every pair of values."""

from itertools import combinations, product

from tests.e2e.mode import Mode

_XDP = ("off", "generic", "native")
_DSR = ("off", "all")
_SCHEDULERS = ("random", "round-robin", "least-connections", "maglev")
_EJECTION = ("off", "on")

Pair = tuple[tuple[str, str], ...]


def all_modes() -> list[Mode]:
    return [Mode(*values) for values in product(_XDP, _DSR, _SCHEDULERS, _EJECTION)]


def pairwise_modes() -> list[Mode]:
    """Enough modes that any two values of two options occur together in one of them."""
    every = all_modes()
    missing = {pair for mode in every for pair in _pairs(mode)}
    chosen = []
    while missing:
        chosen.append(max(every, key=lambda mode: len(missing & _pairs(mode))))
        missing -= _pairs(chosen[-1])
    return chosen


def mode_id(mode: Mode) -> str:
    return ",".join(f"{name}={value}" for name, value in mode._asdict().items())


def _pairs(mode: Mode) -> set[Pair]:
    return set(combinations(mode._asdict().items(), 2))

# SPDX-License-Identifier: Apache-2.0
"""Interleaved rounds: the sides of a comparison alternate, so that a slow minute affects both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

_Value = TypeVar("_Value")
Measure = Callable[[], float]


class Span(NamedTuple):
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Values of both sides, round by round; more is better."""

    ours: Sequence[float]
    other: Sequence[float]

    @property
    def ratio(self) -> Span:
        """The ratio of the medians; lowest and highest of the ratios within one round."""
        pairs = [ours / other for ours, other in zip(self.ours, self.other, strict=True)]
        return Span(median(self.ours) / median(self.other), min(pairs), max(pairs))


def in_turns(measures: Mapping[str, Callable[[], _Value]], rounds: int) -> dict[str, list[_Value]]:
    """Measure all of them once per round, in order, after a round that does not count."""
    found: dict[str, list[_Value]] = {name: [] for name in measures}
    for _ in range(1 + rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: values[1:] for name, values in found.items()}


def span(values: Sequence[float]) -> Span:
    """The span of some values."""
    return Span(median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]

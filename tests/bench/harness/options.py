# SPDX-License-Identifier: Apache-2.0
"""The options of all benches, and their error."""

from dataclasses import dataclass, replace


class BenchError(Exception):
    """A figure would be worthless; one line for the operator says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """rounds: of each comparison. seconds: of one measurement. quick: a smoke run, few Services.

    `only`: a text that the cases of path benches must contain.
    """

    rounds: int = 25
    seconds: float = 0.5
    quick: bool = False
    only: str = ""

    def scaled(self, count: int) -> int:
        """The number itself, or a tenth of it in a smoke run."""
        return count // 10 if self.quick else count

    def fewer(self, share: int) -> "Options":
        """The same with this share of the rounds, for benches of many comparisons."""
        return replace(self, rounds=max(1, self.rounds // share))

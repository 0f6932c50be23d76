# SPDX-License-Identifier: Apache-2.0
"""What all benches are told, and how they fail."""

from dataclasses import dataclass


class BenchError(Exception):
    """Something makes a figure worthless; one line for the operator."""


@dataclass(frozen=True, slots=True)
class Options:
    """rounds: of each comparison. seconds: of one measurement. quick: a smoke run, few Services.

    `only`: what the cases of benches of ways must contain.
    """

    rounds: int = 25
    seconds: float = 0.5
    quick: bool = False
    only: str = ""

    def scaled(self, count: int) -> int:
        """As many as that, or a tenth in a smoke run."""
        return count // 10 if self.quick else count

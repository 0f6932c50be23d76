# SPDX-License-Identifier: Apache-2.0
"""The labels of pods, which decide about the weights of endpoints."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class PodLabels:
    """Those of one pod, of any node: key and value of each, sorted.

    weight: what its annotation says; None without one. problem: why its annotation is ignored, in
    one line.
    """

    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    weight: int | None = None
    problem: str = ""

    def limited_to(self, keys: Collection[str]) -> Self:
        """Without labels that have other keys."""
        return replace(self, labels=tuple(each for each in self.labels if each[0] in keys))

# SPDX-License-Identifier: Apache-2.0
"""What weights need to know of the pods of other nodes, too."""

from typing import NamedTuple


class PodLabels(NamedTuple):
    """labels: key and value, sorted. weight: of the pod's annotation, None without it."""

    namespace: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    weight: int | None = None

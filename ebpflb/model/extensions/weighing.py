# SPDX-License-Identifier: Apache-2.0
"""The weight of each endpoint among those that a choice has."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import lcm
from typing import NamedTuple

from ebpflb.model.extensions.apportionment import as_slots, as_turns
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weights import Weights

LabelsOf = Callable[[str, str], PodLabels | None]
"""By the namespace and the name of a pod; None if nothing is known of it."""

# Of the slices of a Service that have none while others have some, as in Cilium.
_USUAL_OF_SLICE = 100


def no_labels(_namespace: str, _name: str) -> None:
    """Nothing is known of any pod."""


class ToWeigh(NamedTuple):
    """An endpoint to weigh. pod: NAMESPACE/NAME, or "". slice_weight: of its EndpointSlice."""

    pod: str
    slice_weight: int | None


class Weighing:
    """For one Service. is_in_vain: some choice had endpoints, and none of them a weight above 0."""

    def __init__(self, weights: Weights | None = None, labels_of: LabelsOf = no_labels) -> None:
        """`weights`: None for those of the EndpointSlices."""
        self._weights = weights
        self._labels_of = labels_of
        # By key and value of a label, the first share that has it: there may be thousands.
        self._numbers: dict[tuple[str, str], int] = {}
        for number, share in enumerate(weights.shares if weights else ()):
            self._numbers.setdefault(share[:2], number)
        self.is_in_vain = False

    def slots(self, endpoints: Sequence[ToWeigh], table_size: int) -> Sequence[int]:
        """How many slots each gets in the table of a choice, 0 for no new connections.

        All 1 if they are equal, or all 0: then the weights have no effect. table_size: slots of
        the lookup table, 0 without one.
        """
        weights = self._of(endpoints)
        above = [each for each in weights if each]
        if not above:
            self.is_in_vain = self.is_in_vain or bool(endpoints)
            return [1] * len(endpoints)
        slots = iter(as_slots(above, table_size) if table_size else as_turns(above))
        return [next(slots) if each else 0 for each in weights]

    def has_any(self, endpoints: Sequence[ToWeigh]) -> Sequence[bool]:
        """Whether each gets new connections: all do if all weights are 0."""
        weights = self._of(endpoints)
        return [bool(each) for each in weights] if any(weights) else [True] * len(endpoints)

    def _of(self, endpoints: Sequence[ToWeigh]) -> Sequence[int]:
        if self._weights is None:
            return _of_slices(endpoints)
        if not self._weights.shares:
            return [self._of_pod(each) for each in endpoints]
        groups = [self._group(each) for each in endpoints]
        sizes = Counter(groups)
        whole = lcm(*sizes.values())
        return [
            0 if group is None else self._weights.shares[group].weight * whole // sizes[group]
            for group in groups
        ]

    def _of_pod(self, endpoint: ToWeigh) -> int:
        found = self._pod_of(endpoint)
        return 1 if found is None or found.weight is None else found.weight

    def _group(self, endpoint: ToWeigh) -> int | None:
        """The number of the first share that its pod has part in."""
        found = self._pod_of(endpoint)
        labels = found.labels if found else ()
        numbers = (self._numbers[label] for label in labels if label in self._numbers)
        return min(numbers, default=None)

    def _pod_of(self, endpoint: ToWeigh) -> PodLabels | None:
        namespace, slash, name = endpoint.pod.partition("/")
        return self._labels_of(namespace, name) if slash else None


def _of_slices(endpoints: Sequence[ToWeigh]) -> Sequence[int]:
    return [
        _USUAL_OF_SLICE if each.slice_weight is None else each.slice_weight for each in endpoints
    ]

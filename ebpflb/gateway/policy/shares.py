# SPDX-License-Identifier: Apache-2.0
"""The weight of each endpoint, so that backends have their shares, however large they are."""

from collections.abc import Sequence
from math import gcd, lcm
from typing import NamedTuple

HEAVIEST = 65535
"""Of the annotation of an EndpointSlice."""


class BackendSize(NamedTuple):
    """What a backend is to get, and how many ready endpoints share that."""

    weight: int
    endpoints: int


def endpoint_weights(backends: Sequence[BackendSize]) -> Sequence[int]:
    """Of each endpoint of each backend, as small as possible; rounded where that is too large.

    0 for a backend that is to get nothing, or that has no endpoint; 1 is the least of the others.
    """
    counts = [each.endpoints for each in backends if each.weight and each.endpoints]
    whole = lcm(*counts)
    weights = [each.weight * whole // each.endpoints if each.endpoints else 0 for each in backends]
    divisor = gcd(*weights) or 1
    reduced = [each // divisor for each in weights]
    largest = max(reduced, default=0)
    if largest <= HEAVIEST:
        return reduced
    return [max(1, round(each * HEAVIEST / largest)) if each else 0 for each in reduced]

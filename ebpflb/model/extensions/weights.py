# SPDX-License-Identifier: Apache-2.0
"""Weights: how much of the new connections each endpoint of a Service gets."""

from typing import NamedTuple

HEAVIEST = 1_000_000
"""As of backendRefs in the Gateway API."""


class Share(NamedTuple):
    """What the endpoints whose pods have a label get together, evenly among them."""

    key: str
    value: str
    weight: int


class Weights(NamedTuple):
    """shares: the first that matches a pod counts; without any, a pod has its own annotation."""

    shares: tuple[Share, ...] = ()

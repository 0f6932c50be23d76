# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a Service ask for."""

from dataclasses import dataclass

from ebpflb.model.extensions.weights import Weights
from ebpflb.words.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Annotated:
    """None: the agent's default.

    dsr: whether it has direct server return. ejection: after how many failed connections in a row
    an endpoint is ejected, 0 for never. retry: whether a connection that an endpoint fails goes to
    another one. weights: None for even ones.
    """

    scheduler: Scheduler | None = None
    dsr: bool | None = None
    ejection: int | None = None
    retry: bool = False
    weights: Weights | None = None


NOTHING = Annotated()

# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a Service ask for."""

from dataclasses import dataclass

from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.extensions.weights import Weights
from ebpflb.words.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Annotated:
    """None: the agent's default.

    dsr: whether it has direct server return. ejection: after how many failed connections in a row
    an endpoint is ejected, 0 for never. weights: None for even ones. vip_unserved: None for
    rejecting only what this node would send back to the network. no_local_endpoint: None for drop.
    """

    scheduler: Scheduler | None = None
    dsr: bool | None = None
    ejection: int | None = None
    weights: Weights | None = None
    vip_unserved: Unserved | None = None
    no_local_endpoint: NoLocalEndpoint | None = None


NOTHING = Annotated()

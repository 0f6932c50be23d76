# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a Service ask for."""

from dataclasses import dataclass

from ebpflb.model.extensions.lifetime import EndingRules, MaxAge, OnEndpointGone, Rebalance
from ebpflb.model.extensions.limits import Limits, OpenLimit, RateLimit
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.extensions.weights import Weights
from ebpflb.words.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Annotated:
    """None: the agent's default.

    dsr: whether it has direct server return. ejection: after how many failed connections in a row
    an endpoint is ejected, 0 for never. weights: None for even ones. backup: NAME or NAMESPACE/NAME
    of another Service. backup_for: the namespaces that may use this one so. spill_at: from how many
    open connections on new ones also go to the backup. vip_unserved: None for rejecting only what
    this node would send back to the network. no_local_endpoint: None for drop. retry: whether a
    connection that an endpoint fails goes to another one. max_open, max_open_per_client and
    new_per_client: None for no limit.
    """

    scheduler: Scheduler | None = None
    dsr: bool | None = None
    ejection: int | None = None
    retry: bool = False
    max_open: OpenLimit | None = None
    max_open_per_client: OpenLimit | None = None
    new_per_client: RateLimit | None = None
    weights: Weights | None = None
    rebalance: Rebalance | None = None
    max_age: MaxAge | None = None
    on_endpoint_gone: OnEndpointGone = OnEndpointGone.KEEP
    backup: str | None = None
    backup_for: tuple[str, ...] | None = None
    spill_at: int | None = None
    vip_unserved: Unserved | None = None
    no_local_endpoint: NoLocalEndpoint | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.max_open, self.max_open_per_client, self.new_per_client)

    @property
    def ending(self) -> EndingRules | None:
        """Which open connections are ended; None for none."""
        if self.rebalance is None and self.max_age is None and not self.resets_gone:
            return None
        return EndingRules(self.rebalance, self.max_age, self.on_endpoint_gone)

    @property
    def resets_gone(self) -> bool:
        return self.on_endpoint_gone is OnEndpointGone.RESET


NOTHING = Annotated()

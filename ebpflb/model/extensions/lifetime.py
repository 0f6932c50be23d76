# SPDX-License-Identifier: Apache-2.0
"""How long connections stay with their endpoints, if an annotation asks for anything."""

from enum import StrEnum
from typing import NamedTuple, Self

# Without `rebalance`, how long a connection that is too old must have been idle.
_IDLE_SECONDS = 1.0


class OnEndpointGone(StrEnum):
    """What becomes of connections to an endpoint that no EndpointSlice names any more."""

    KEEP = "keep"
    RESET = "reset"


class Rebalance(NamedTuple):
    """idle: seconds without data. per_minute: at most so many connections of a Service."""

    idle: float
    per_minute: int
    is_dry_run: bool = False


class MaxAge(NamedTuple):
    """In seconds, give or take so many percent of it, so that not all end at once."""

    seconds: float
    percent: int = 0


class EndingRules(NamedTuple):
    """What the annotations of a Service ask for."""

    rebalance: Rebalance | None = None
    max_age: MaxAge | None = None
    on_gone: OnEndpointGone = OnEndpointGone.KEEP

    @property
    def in_force(self) -> Self:
        """The same without a rebalance that is a dry run."""
        return self._replace(rebalance=None) if self._has_dry_run else self

    @property
    def rehearsed(self) -> Self:
        """A rebalance that is a dry run, alone."""
        return type(self)(self.rebalance if self._has_dry_run else None)

    @property
    def _has_dry_run(self) -> bool:
        return self.rebalance is not None and self.rebalance.is_dry_run

    @property
    def idle(self) -> float:
        """How long a connection must have been idle."""
        return self.rebalance.idle if self.rebalance else _IDLE_SECONDS

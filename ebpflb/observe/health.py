# SPDX-License-Identifier: Apache-2.0
"""Whether this node serves what it was told to: kube-proxy's rules for /healthz and /livez.

Unhealthy means that a change has waited for a minute without a successful sync. A new change does
not restart that minute. An agent that is idle, or that is starting, is healthy.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

# Twice kube-proxy's default syncPeriod.
PATIENCE_SECONDS = 60.0
# Go's time.Time before anything happened, as kube-proxy shows it.
_NEVER = "0001-01-01T00:00:00Z"


class _State(NamedTuple):
    """Replaced as a whole, so that other threads never see half of a change."""

    waiting_since: float | None = None
    last_sync: float | None = None
    eligible: bool = True


class Health:
    """Written by one thread, read by any. All families are written by one sync and share a state.

    Eligible: whether load balancers should send traffic to this node. True until a source that
    knows the Node says otherwise.
    """

    def __init__(
        self,
        families: tuple[str, ...],
        *,
        patience: float = PATIENCE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`families`: IPv4, IPv6. `patience`: seconds that a change may wait.

        `wall`: seconds since 1970, for what is shown.
        """
        self._patience = patience
        self._families = families
        self._monotonic = monotonic
        self._wall = wall
        self._state = _State()

    def queued(self) -> None:
        """A change has come that is not in the kernel yet."""
        if self._state.waiting_since is None:
            self._state = self._state._replace(waiting_since=self._monotonic())

    def synced(self) -> None:
        """Everything that was wanted is in the kernel."""
        self._state = self._state._replace(waiting_since=None, last_sync=self._wall())

    def set_eligible(self, eligible: bool) -> None:
        """Say whether the node should get traffic from load balancers."""
        self._state = self._state._replace(eligible=eligible)

    @property
    def last_sync(self) -> float | None:
        """When the last sync succeeded, in seconds since 1970."""
        return self._state.last_sync

    def is_idle(self) -> bool:
        """Whether no change waits."""
        return self._state.waiting_since is None

    def is_alive(self) -> bool:
        """/livez: whether no change has waited for too long."""
        return self._is_alive(self._state)

    def is_ready(self) -> bool:
        """/healthz: alive, and load balancers may send traffic."""
        return self.is_alive() and self._state.eligible

    @property
    def is_started(self) -> bool:
        """/readyz: whether this node serves what it was told to at first."""
        return self._state.last_sync is not None

    def liveness(self) -> tuple[bool, str]:
        """The verdict of /livez and its body."""
        return self._report(with_eligibility=False)

    def readiness(self) -> tuple[bool, str]:
        """The verdict of /healthz and its body."""
        return self._report(with_eligibility=True)

    def _is_alive(self, state: _State) -> bool:
        since = state.waiting_since
        return since is None or self._monotonic() - since < self._patience

    def _report(self, *, with_eligibility: bool) -> tuple[bool, str]:
        state = self._state
        healthy = self._is_alive(state)
        good = healthy and (state.eligible or not with_eligibility)
        now = rfc3339(self._wall())
        last = _NEVER if state.last_sync is None else rfc3339(state.last_sync)
        eligibility = {"nodeEligible": state.eligible} if with_eligibility else {}
        body = {
            # A 200 always carries the current time here, for the sake of old load balancers.
            "lastUpdated": now if good else last,
            "currentTime": now,
            **eligibility,
            "healthy": healthy,
            "status": {
                family: {"lastUpdated": last, "healthy": healthy} for family in self._families
            },
        }
        return good, json.dumps(body)


def rfc3339(seconds: float) -> str:
    """A time as Kubernetes writes it, in UTC with microseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"

# SPDX-License-Identifier: Apache-2.0
"""Whether this node serves its Services, by kube-proxy's rules for /healthz and /livez.

Unhealthy means that a change has waited for a minute without a successful sync. A new change does
not restart that minute. An idle or starting agent is healthy, and so is one that cannot read the
API server: what it last read is in force. But it is not ready.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

# Twice kube-proxy's default syncPeriod.
PATIENCE_SECONDS = 60.0
# How long something may be unreadable before the agent is not ready.
READ_PATIENCE_SECONDS = 60.0
# Go's zero time.Time, which kube-proxy shows before the first sync.
_NEVER = "0001-01-01T00:00:00Z"


class _SyncTimes(NamedTuple):
    """Replaced as a whole, so that other threads never see it half updated."""

    waiting_since: float | None = None
    unread_since: float | None = None
    last_sync: float | None = None
    eligible: bool = True


class Health:
    """Written by one thread, read by any. One sync writes all families, which share its times.

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
        on_sync: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`families`: IPv4, IPv6. `patience`: how many seconds a change may wait.

        `wall`: seconds since 1970, for the reports. `on_sync` gets the time of each sync.
        """
        self._patience = patience
        self._families = families
        self._monotonic = monotonic
        self._wall = wall
        self._on_sync = on_sync
        self._times = _SyncTimes()

    def queued(self) -> None:
        """A change has arrived that is not in the kernel yet."""
        if self._times.waiting_since is None:
            self._times = self._times._replace(waiting_since=self._monotonic())

    def synced(self) -> None:
        """The kernel has the desired state."""
        now = self._wall()
        self._times = self._times._replace(waiting_since=None, last_sync=now)
        self._on_sync(now)

    def set_readable(self, readable: bool) -> None:
        """Whether all that the API server has can be listed and watched."""
        if readable:
            self._times = self._times._replace(unread_since=None)
        elif self._times.unread_since is None:
            self._times = self._times._replace(unread_since=self._monotonic())

    def set_eligible(self, eligible: bool) -> None:
        self._times = self._times._replace(eligible=eligible)

    @property
    def last_sync(self) -> float | None:
        """When the last sync succeeded, in seconds since 1970."""
        return self._times.last_sync

    def is_idle(self) -> bool:
        """Whether no change is pending."""
        return self._times.waiting_since is None

    def is_alive(self) -> bool:
        return self._is_alive(self._times)

    def unread_seconds(self) -> float:
        """For how long something could not be read, 0 if all can."""
        since = self._times.unread_since
        return 0.0 if since is None else self._monotonic() - since

    def unready(self) -> str:
        """/readyz: empty if the first sync has succeeded and changes can be read."""
        if self._times.last_sync is None:
            return "not in sync yet"
        if self.unread_seconds() >= READ_PATIENCE_SECONDS:
            return "changes cannot be read: see `ebpflb status`"
        return ""

    def liveness(self) -> tuple[bool, str]:
        """The verdict of /livez and its body."""
        return self._report(with_eligibility=False)

    def readiness(self) -> tuple[bool, str]:
        """The verdict of /healthz, which also requires an eligible node, and its body."""
        return self._report(with_eligibility=True)

    def _is_alive(self, times: _SyncTimes) -> bool:
        """Whether no change has waited for too long."""
        since = times.waiting_since
        return since is None or self._monotonic() - since < self._patience

    def _report(self, *, with_eligibility: bool) -> tuple[bool, str]:
        times = self._times
        healthy = self._is_alive(times)
        good = healthy and (times.eligible or not with_eligibility)
        now = rfc3339(self._wall())
        last = _NEVER if times.last_sync is None else rfc3339(times.last_sync)
        eligibility = {"nodeEligible": times.eligible} if with_eligibility else {}
        body = {
            # With status 200 this is always the current time, for the sake of old load balancers.
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

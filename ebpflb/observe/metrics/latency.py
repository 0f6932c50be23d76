# SPDX-License-Identifier: Apache-2.0
"""Network programming latency: from a change of endpoints to its being in force.

The rules are those of kube-proxy's EndpointsChangeTracker.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ebpflb.model.address import Family
from ebpflb.model.service import ServiceName
from ebpflb.source.source_event import Trigger


class Delay(NamedTuple):
    """How long one change took, in seconds."""

    family: Family
    seconds: float


class Latency:
    """Times of changes that are not in force yet."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970. What happened before now tells nothing."""
        self._wall = wall
        self._started = wall()
        self._pending: dict[tuple[ServiceName, Family], list[float]] = {}

    def note(self, triggers: Iterable[Trigger]) -> None:
        """Remember when changes were triggered."""
        for service, family, triggered in triggers:
            if triggered is None:
                self._pending.pop((service, family), None)
            elif triggered > self._started:
                self._pending.setdefault((service, family), []).append(triggered)

    def take(self) -> Iterator[Delay]:
        """Everything noted is in force now."""
        now = self._wall()
        pending, self._pending = self._pending, {}
        for (_, family), times in pending.items():
            yield from (Delay(family, now - triggered) for triggered in times)

    def forget(self) -> None:
        """What was noted is part of a sync that failed."""
        self._pending.clear()

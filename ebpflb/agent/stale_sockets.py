# SPDX-License-Identifier: Apache-2.0
"""When to end UDP sockets of backends that are gone: right after a sync, again until it works.

The first of several syncs is followed at once, those shortly after it together.
"""

import logging
from collections.abc import Callable

from ebpflb.agent.interface import GRACE_SECONDS, Dataplane
from ebpflb.agent.timers import Backoff, Task, Timers
from ebpflb.errors import EbpflbError
from ebpflb.log import fields
from ebpflb.observe.metrics.page import Metrics

_log = logging.getLogger("ebpflb.agent")

# A pass goes over all sockets with an entry in lb_sockets, and may enter all namespaces.
_PAUSE_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0


class StaleSocketPasses:
    """Starts passes of `Dataplane.end_udp_sockets()` by a timer of the loop."""

    def __init__(
        self,
        dataplane: Dataplane,
        metrics: Metrics,
        timers: Timers,
        clock: Callable[[], float],
        longest_retry: float,
    ) -> None:
        self._dataplane = dataplane
        self._metrics = metrics
        self._timers = timers
        self._clock = clock
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, longest_retry)
        self._last = -_PAUSE_SECONDS
        self._failing = False

    def synced(self) -> None:
        """Have a pass made if this sync took a UDP backend out of service."""
        if self._dataplane.take_ended_udp():
            wait = max(0.0, self._last + _PAUSE_SECONDS - self._clock())
            self._timers.start(Task.SOCKETS, wait)

    def run(self) -> None:
        """Make one pass. Another follows if it failed, or could not see everything yet."""
        began = self._clock()
        try:
            ended = self._dataplane.end_udp_sockets()
        except EbpflbError as error:
            wait = self._backoff.fail()
            self._timers.start(Task.SOCKETS, wait)
            if not self._failing:
                _log.error("%s", error, extra=fields(again_in_seconds=wait))
            self._failing = True
            return
        self._last = self._clock()
        self._metrics.reconciled(self._last - began, ended.sockets)
        if self._failing:
            _log.info("UDP sockets of backends that are gone can be ended again")
        self._failing = False
        self._backoff.reset()
        if ended.sockets:
            _log.debug("UDP sockets ended", extra=fields(count=sum(ended.sockets.values())))
        if ended.pending:
            self._timers.ensure(Task.SOCKETS, GRACE_SECONDS)

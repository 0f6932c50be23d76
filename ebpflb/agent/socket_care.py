# SPDX-License-Identifier: Apache-2.0
"""When UDP sockets of backends that are gone are ended: soon after each such sync, until it works.

The first of several syncs is followed at once, those that come right behind it together.
"""

import logging
from collections.abc import Callable

from ebpflb.agent.interface import GRACE_SECONDS, Dataplane
from ebpflb.agent.timers import Backoff, Task, Timers
from ebpflb.errors import EbpflbError
from ebpflb.log import fields
from ebpflb.observe.metrics.page import Metrics

_log = logging.getLogger("ebpflb.agent")

# A pass goes over all sockets that were translated, and may go over all namespaces.
_PAUSE_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0


class SocketCare:
    """Has the dataplane look for such sockets; the loop says when a sync was made."""

    def __init__(
        self,
        dataplane: Dataplane,
        metrics: Metrics,
        timers: Timers,
        clock: Callable[[], float],
        longest_retry: float,
    ) -> None:
        """`clock` and `longest_retry`: seconds."""
        self._dataplane = dataplane
        self._metrics = metrics
        self._timers = timers
        self._clock = clock
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, longest_retry)
        self._last = -_PAUSE_SECONDS
        self._failing = False

    def synced(self) -> None:
        """What was wanted is in force."""
        if self._dataplane.take_ended_udp():
            wait = max(0.0, self._last + _PAUSE_SECONDS - self._clock())
            self._timers.start(Task.SOCKETS, wait)

    def look(self) -> None:
        """One pass; there will be another one if it failed, or could not see everything yet."""
        began = self._clock()
        try:
            ended = self._dataplane.end_udp_sockets()
        except EbpflbError as error:
            self._fail(error)
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

    def _fail(self, error: EbpflbError) -> None:
        wait = self._backoff.fail()
        self._timers.start(Task.SOCKETS, wait)
        if not self._failing:
            _log.error("%s", error, extra=fields(again_in_seconds=wait))
        self._failing = True

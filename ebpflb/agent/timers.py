# SPDX-License-Identifier: Apache-2.0
"""Deadlines of the loop's tasks, one per task, and the task that closes stale UDP sockets.

There is no timer thread: the loop asks what is due.
"""

import logging
import time
from collections.abc import Callable
from enum import StrEnum

from ebpflb.agent.interface import GRACE_SECONDS, Dataplane
from ebpflb.errors import EbpflbError
from ebpflb.log import fields
from ebpflb.observe.metrics.page import Metrics


class Task(StrEnum):
    """What the loop does on a timer."""

    COLLECT = "wait until the kernel no longer uses what was replaced"
    COLLECT_NOW = "free what was replaced"
    EXPIRE = "expire flows"
    RETRY = "retry what failed"
    COMPARE = "compare maps and Services with what they should be"
    REPAIR = "check all hooks"
    PINS = "check that no pin has been removed"
    LISTEN = "open health check node ports"
    WRITE = "write the changes gathered so far"
    ROOM = "check whether flows need more room"
    RULES = "check the netfilter rules of others"
    EJECT = "check failed connections"
    END = "end connections that their Services want elsewhere"
    SPILL = "count open connections of Services that may spill over"
    PROBE = "probe other nodes for DSR"
    KEYS = "read the keys of DSR tunnels"
    SOCKETS = "close UDP sockets of backends that are gone"


class Timers:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._deadlines: dict[Task, float] = {}

    def start(self, task: Task, seconds: float) -> None:
        """Set the task's deadline, replacing any other."""
        self._deadlines[task] = self._clock() + seconds

    def ensure(self, task: Task, seconds: float) -> None:
        """Like `start()`, unless the task already has a deadline."""
        self._deadlines.setdefault(task, self._clock() + seconds)

    def is_started(self, task: Task) -> bool:
        return task in self._deadlines

    def wait(self) -> float | None:
        """Seconds until the next deadline, 0 if one has passed, None if there is none."""
        if not self._deadlines:
            return None
        return max(0.0, min(self._deadlines.values()) - self._clock())

    def take_due(self) -> list[Task]:
        """Remove the deadlines that have passed; returns their tasks, earliest first."""
        now = self._clock()
        due = [task for task, deadline in self._deadlines.items() if deadline <= now]
        due.sort(key=self._deadlines.__getitem__)
        for task in due:
            del self._deadlines[task]
        return due


class Backoff:
    """A wait that doubles while something keeps failing."""

    def __init__(self, first: float, longest: float) -> None:
        """Both in seconds."""
        self._first = first
        self._longest = longest
        self._next = first

    def fail(self) -> float:
        """Count a failure; returns how long to wait."""
        wait, self._next = self._next, min(2 * self._next, self._longest)
        return wait

    def reset(self) -> None:
        self._next = self._first


_log = logging.getLogger("ebpflb.agent")

# A pass visits all sockets with an entry in lb_sockets, and may enter all network namespaces.
_PAUSE_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 1.0


class StaleSocketPasses:
    """Schedules passes of `Dataplane.end_udp_sockets()` on a timer of the loop."""

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
        """Schedule a pass if this sync took a UDP backend out of service."""
        if self._dataplane.take_ended_udp():
            wait = max(0.0, self._last + _PAUSE_SECONDS - self._clock())
            self._timers.start(Task.SOCKETS, wait)

    def run(self) -> None:
        """Make one pass, and schedule another if it failed or could not see everything yet."""
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
            _log.info("closing stale UDP sockets again")
        self._failing = False
        self._backoff.reset()
        if ended.sockets:
            _log.debug("closed stale UDP sockets", extra=fields(count=sum(ended.sockets.values())))
        if ended.pending:
            self._timers.ensure(Task.SOCKETS, GRACE_SECONDS)

# SPDX-License-Identifier: Apache-2.0
"""Deadlines of the loop's tasks, one per task. There is no thread: the loop asks."""

import time
from collections.abc import Callable
from enum import StrEnum


class Task(StrEnum):
    """What the loop does by the clock."""

    COLLECT = "wait until the kernel no longer uses what was replaced"
    COLLECT_NOW = "free what was replaced"
    EXPIRE = "expire flows"
    RETRY = "repeat what failed"
    RESYNC = "compare everything"
    REPAIR = "check all hooks"
    LISTEN = "open health check node ports"
    WRITE = "write the changes gathered so far"
    SOCKETS = "end UDP sockets of backends that are gone"


class Timers:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._deadlines: dict[Task, float] = {}

    def start(self, task: Task, seconds: float) -> None:
        """Set the task's deadline, in place of any other."""
        self._deadlines[task] = self._clock() + seconds

    def ensure(self, task: Task, seconds: float) -> None:
        """As `start()`, unless the task has a deadline already."""
        self._deadlines.setdefault(task, self._clock() + seconds)

    def is_started(self, task: Task) -> bool:
        return task in self._deadlines

    def wait(self) -> float | None:
        """Seconds until the next deadline, 0 if one has passed, None without any."""
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
    """Waiting times that double while something keeps failing."""

    def __init__(self, first: float, longest: float) -> None:
        """Both in seconds."""
        self._first = first
        self._longest = longest
        self._next = first

    def fail(self) -> float:
        """How long to wait now."""
        wait, self._next = self._next, min(2 * self._next, self._longest)
        return wait

    def reset(self) -> None:
        self._next = self._first

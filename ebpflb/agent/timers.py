# SPDX-License-Identifier: Apache-2.0
"""What is due later: one deadline per task. No thread; the loop asks."""

import time
from collections.abc import Callable
from enum import StrEnum


class Task(StrEnum):
    """What the loop does by the clock."""

    COLLECT = "see to it that what was replaced can be freed"
    COLLECT_NOW = "free what was replaced"
    EXPIRE = "expire flows"
    RETRY = "repeat what failed"
    RESYNC = "compare everything"
    REPAIR = "look at the hooks"
    LISTEN = "listen for health checks"
    WRITE = "write what has gathered"
    SOCKETS = "end UDP sockets of backends that are gone"


class Timers:
    """Deadlines of tasks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._deadlines: dict[Task, float] = {}

    def start(self, task: Task, seconds: float) -> None:
        """Have a task done in so many seconds, whatever was said about it before."""
        self._deadlines[task] = self._clock() + seconds

    def ensure(self, task: Task, seconds: float) -> None:
        """As `start()`, unless it has a deadline already."""
        self._deadlines.setdefault(task, self._clock() + seconds)

    def is_started(self, task: Task) -> bool:
        """Whether a task has a deadline that was not taken yet."""
        return task in self._deadlines

    def wait(self) -> float | None:
        """Seconds until the next deadline, 0 if one has passed, None without any."""
        if not self._deadlines:
            return None
        return max(0.0, min(self._deadlines.values()) - self._clock())

    def take_due(self) -> list[Task]:
        """The tasks whose deadline has passed, earliest first; their deadlines are gone."""
        now = self._clock()
        due = sorted(
            (task for task, at in self._deadlines.items() if at <= now),
            key=self._deadlines.__getitem__,
        )
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
        """It has worked."""
        self._next = self._first

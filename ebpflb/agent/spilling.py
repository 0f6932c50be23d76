# SPDX-License-Identifier: Apache-2.0
"""Runs the model's spill-over on a timer of the loop."""

from collections.abc import Callable

from ebpflb.agent.interface import Dataplane
from ebpflb.agent.timers import Task, Timers
from ebpflb.model.backup.backups import Backups

_PERIOD_SECONDS = 1.0


class Spilling:
    """Does nothing, and reads nothing, while no Service may spill over."""

    def __init__(
        self,
        backups: Backups,
        dataplane: Dataplane,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds."""
        self._backups = backups
        self._dataplane = dataplane
        self._timers = timers
        self._clock = clock

    def synced(self) -> None:
        """Watch from now on, if any Service may spill over."""
        if self._backups.has_spilling:
            self._timers.ensure(Task.SPILL, _PERIOD_SECONDS)

    def run(self) -> None:
        """Check once; the next write programs the result. MapError."""
        counts = self._dataplane.read_open(self._backups.limits())
        self._backups.observe(counts, self._clock())
        self.synced()

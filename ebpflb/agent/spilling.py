# SPDX-License-Identifier: Apache-2.0
"""Runs the model's spill-over on a timer of the loop."""

from ebpflb.agent.timers import Task
from ebpflb.agent.watcher import Watcher

_PERIOD_SECONDS = 1.0


class Spilling(Watcher):
    """While any Service may spill over."""

    def synced(self) -> None:
        if self.changes.backups.has_spilling:
            self.timers.ensure(Task.SPILL, _PERIOD_SECONDS)

    def run(self) -> None:
        """The next write programs the result. MapError."""
        backups = self.changes.backups
        backups.observe(self.dataplane.read_open(backups.limits()), self.clock())
        self.synced()

# SPDX-License-Identifier: Apache-2.0
"""What looks at the kernel on a timer of the loop while any Service asks for it."""

from collections.abc import Callable
from dataclasses import dataclass

from ebpflb.agent.interface import Dataplane
from ebpflb.agent.observers import Observers
from ebpflb.agent.timers import Timers
from ebpflb.model.changes import Changes


@dataclass(eq=False)
class Watcher:
    """Does nothing, and reads nothing, while no Service asks for it. clock: seconds."""

    changes: Changes
    dataplane: Dataplane
    observers: Observers
    timers: Timers
    clock: Callable[[], float]

    def synced(self) -> None:
        """Look from now on, if any Service asks for it."""
        raise NotImplementedError

    def run(self) -> None:
        """Look once. MapError."""
        raise NotImplementedError

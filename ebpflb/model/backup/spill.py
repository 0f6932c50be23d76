# SPDX-License-Identifier: Apache-2.0
"""Spill-over: Service ports with so many open connections that their backup is to help.

It begins at a number of open connections, and ends once there were fewer than four fifths of that
for a while. Times are in seconds, by any clock that never goes back.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ebpflb.model.service import ServicePortName

QUIET_SECONDS = 30.0
# It ends below 4/5 of the number at which it begins.
_LEFT, _OF = 4, 5


class SpillChange(NamedTuple):
    """open: how many open connections the port has."""

    port: ServicePortName
    is_spilling: bool
    open: int


class Spills:
    """The Service ports of this node that spill over."""

    def __init__(self) -> None:
        # Since when each has had few open connections; None: it has many.
        self._quiet_since: dict[ServicePortName, float | None] = {}

    @property
    def ports(self) -> Collection[ServicePortName]:
        return self._quiet_since.keys()

    def observe(
        self,
        limits: Mapping[ServicePortName, int],
        counts: Mapping[ServicePortName, int],
        now: float,
    ) -> list[SpillChange]:
        """Re-evaluate all ports. Returns the changes.

        limits: of the ports that may spill over. counts: their open connections, 0 if missing.
        """
        changes = [
            self._end(port, counts.get(port, 0))
            for port in self._quiet_since.keys() - limits.keys()
        ]
        for port, limit in limits.items():
            count = counts.get(port, 0)
            if port not in self._quiet_since:
                if count >= limit:
                    self._quiet_since[port] = None
                    changes.append(SpillChange(port, is_spilling=True, open=count))
            elif self._is_over(port, now, is_quiet=count * _OF < limit * _LEFT):
                changes.append(self._end(port, count))
        return sorted(changes)

    def _is_over(self, port: ServicePortName, now: float, *, is_quiet: bool) -> bool:
        if not is_quiet:
            self._quiet_since[port] = None
            return False
        since = self._quiet_since[port]
        if since is None:
            self._quiet_since[port] = since = now
        return now - since >= QUIET_SECONDS

    def _end(self, port: ServicePortName, count: int) -> SpillChange:
        del self._quiet_since[port]
        return SpillChange(port, is_spilling=False, open=count)

# SPDX-License-Identifier: Apache-2.0
"""Runs the model's ejection on a timer of the loop, and reports what it did to users."""

import logging
from collections.abc import Callable

from ebpflb.agent.interface import Dataplane
from ebpflb.agent.observers import Observers
from ebpflb.agent.timers import Task, Timers
from ebpflb.config.values import socket_address
from ebpflb.log import fields
from ebpflb.model.address import format_address
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionChange
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Announcement
from ebpflb.words.events import EventReason

_log = logging.getLogger("ebpflb.agent")

_PERIOD_SECONDS = 1.0
# Minimum time between two Events about the same Service.
_QUIET_SECONDS = 60.0


class Ejecting:
    """Does nothing, and reads nothing, while no Service has ejection enabled."""

    def __init__(
        self,
        changes: Changes,
        dataplane: Dataplane,
        observers: Observers,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds."""
        self._changes = changes
        self._dataplane = dataplane
        self._observers = observers
        self._timers = timers
        self._clock = clock
        self._announced: dict[ServiceName, float] = {}

    def synced(self) -> None:
        """Watch from now on, if any Service has ejection."""
        if self._changes.has_ejection:
            self._timers.ensure(Task.EJECT, _PERIOD_SECONDS)

    def run(self) -> None:
        """Check once; the next write programs the result. MapError."""
        readings = self._dataplane.read_failures(self._changes.ejections.ports)
        for change in self._changes.observe_failures(readings, self._clock()):
            self._observers.served.ejected(change)
            self._tell(change)
        self.synced()

    def _tell(self, change: EjectionChange) -> None:
        endpoint = socket_address(format_address(change.place.address), change.place.port)
        if not change.seconds:
            _log.info(
                "endpoint no longer ejected", extra=fields(service=change.port, endpoint=endpoint)
            )
            return
        self._observers.metrics.ejected()
        shown = fields(
            service=change.port,
            endpoint=endpoint,
            failures=change.failures,
            seconds=round(change.seconds),
        )
        _log.warning("endpoint ejected: it gets no new connections", extra=shown)
        self._announce_once(change, endpoint)

    def _announce_once(self, change: EjectionChange, endpoint: str) -> None:
        now, service = self._clock(), ServiceName(*change.port[:2])
        recent = {name: at for name, at in self._announced.items() if now - at < _QUIET_SECONDS}
        if service not in recent:
            node = self._changes.node.name
            note = (
                f"{node} sends no new connections to {endpoint} for {change.seconds:.0f} s: "
                f"{change.failures} in a row were refused or not answered"
            )
            self._observers.announce(
                Announcement(ObjectKey(Kind.SERVICE, *service), EventReason.ENDPOINT_EJECTED, note)
            )
            recent[service] = now
        self._announced = recent

# SPDX-License-Identifier: Apache-2.0
"""Runs the model's ejection on a timer of the loop, and reports what it did to users."""

import logging
from dataclasses import dataclass, field

from ebpflb.agent.timers import Task
from ebpflb.agent.watcher import Watcher
from ebpflb.config.values import socket_address
from ebpflb.log import fields
from ebpflb.model.address import format_address
from ebpflb.model.ejection import EjectionChange
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Announcement
from ebpflb.words.events import EventReason

_log = logging.getLogger("ebpflb.agent")

_PERIOD_SECONDS = 1.0
# Minimum time between two Events about the same Service.
_QUIET_SECONDS = 60.0


@dataclass(eq=False)
class Ejecting(Watcher):
    """While any Service has ejection enabled."""

    _announced: dict[ServiceName, float] = field(default_factory=dict, init=False)

    def synced(self) -> None:
        if self.changes.has_ejection:
            self.timers.ensure(Task.EJECT, _PERIOD_SECONDS)

    def run(self) -> None:
        """The next write programs the result. MapError."""
        readings = self.dataplane.read_failures(self.changes.ejections.ports)
        for change in self.changes.observe_failures(readings, self.clock()):
            self.observers.served.ejected(change)
            self._tell(change)
        self.synced()

    def _tell(self, change: EjectionChange) -> None:
        endpoint = socket_address(format_address(change.place.address), change.place.port)
        if not change.seconds:
            _log.info(
                "endpoint no longer ejected", extra=fields(service=change.port, endpoint=endpoint)
            )
            return
        self.observers.metrics.ejected()
        shown = fields(
            service=change.port,
            endpoint=endpoint,
            failures=change.failures,
            seconds=round(change.seconds),
        )
        _log.warning("endpoint ejected: it gets no new connections", extra=shown)
        self._announce_once(change, endpoint)

    def _announce_once(self, change: EjectionChange, endpoint: str) -> None:
        now, service = self.clock(), ServiceName(*change.port[:2])
        recent = {name: at for name, at in self._announced.items() if now - at < _QUIET_SECONDS}
        if service not in recent:
            node = self.changes.node.name
            note = (
                f"{node} sends no new connections to {endpoint} for {change.seconds:.0f} s: "
                f"{change.failures} in a row were refused or not answered"
            )
            self.observers.announce(
                Announcement(ObjectKey(Kind.SERVICE, *service), EventReason.ENDPOINT_EJECTED, note)
            )
            recent[service] = now
        self._announced = recent

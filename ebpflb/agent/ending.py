# SPDX-License-Identifier: Apache-2.0
"""Ends connections that their Services want elsewhere, on a timer of the loop."""

import logging
from collections import Counter
from collections.abc import Callable

from ebpflb.agent.interface import Dataplane
from ebpflb.agent.observers import Observers
from ebpflb.agent.timers import Task, Timers
from ebpflb.errors import EbpflbError
from ebpflb.log import fields
from ebpflb.model.changes import Changes
from ebpflb.model.ending.endings import Ending, Endings
from ebpflb.model.service import Service, ServiceName

_log = logging.getLogger("ebpflb.agent")

# A pass looks into all network namespaces.
_PERIOD_SECONDS = 10.0
# After a change, if endpoints may be gone whose connections are to be reset.
_PAUSE_SECONDS = 1.0
# After some were ended: their clients have connected anew, and may have got the same endpoints.
_AGAIN_SECONDS = 2.0


class EndingConnections:
    """Does nothing, and reads nothing, while no Service asks for it."""

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
        self._endings = Endings()
        self._rehearsal = Endings(is_rehearsal=True)
        self._last = -_PERIOD_SECONDS
        self._is_failing = False

    def synced(self) -> None:
        """Look at the connections from now on, if any Service asks for it."""
        services = self._services()
        if any(each.annotated.resets_gone for each in services):
            self._timers.start(Task.END, max(0.0, self._last + _PAUSE_SECONDS - self._clock()))
        elif services:
            self._timers.ensure(Task.END, _PERIOD_SECONDS)

    def run(self) -> None:
        """One pass. MapError."""
        services = self._services()
        self._last = self._clock()
        for endings in (self._endings, self._rehearsal):
            endings.keep({each.name for each in services})
        if not services:
            return
        wait = _PERIOD_SECONDS
        try:
            if self._end(services):
                wait = _AGAIN_SECONDS
        except EbpflbError as error:
            if not self._is_failing:
                _log.error("%s", error, extra=fields(again_in_seconds=wait))
            self._is_failing = True
        else:
            self._is_failing = False
        self._timers.ensure(Task.END, wait)

    def _services(self) -> list[Service]:
        found = map(self._changes.served, self._changes.with_ending)
        return [each for each in found if each]

    def _end(self, services: list[Service]) -> bool:
        """Whether any connection was ended."""
        held = self._dataplane.held_connections(
            {port.name for service in services for port in service.ports}
        )
        wanted, only_shown = list[Ending](), list[Ending]()
        for service in services:
            known = self._changes.plan(service.name), self._changes.backups.slices(service)
            wanted += self._endings.choose(service, *known, held, self._clock())
            only_shown += self._rehearsal.choose(service, *known, held, self._clock())
        self._tell(only_shown, "connections would be ended: the annotation says dry-run")
        ended = self._dataplane.end_connections(wanted)
        self._tell(ended, "connections ended")
        for reason, count in Counter(each.reason for each in ended).items():
            self._observers.metrics.ended(reason, count)
        return bool(ended)

    def _tell(self, endings: list[Ending], text: str) -> None:
        counts = Counter((ServiceName(*each.port[:2]), each.reason) for each in endings)
        for (service, reason), count in sorted(counts.items()):
            _log.info(text, extra=fields(service=service, reason=str(reason), count=count))

# SPDX-License-Identifier: Apache-2.0
"""Ends connections that their Services want elsewhere, on a timer of the loop."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from ebpflb.agent.timers import Task
from ebpflb.agent.watcher import Watcher
from ebpflb.errors import EbpflbError
from ebpflb.log import fields
from ebpflb.model.ending.endings import Ending, Endings
from ebpflb.model.service import Service, ServiceName

_log = logging.getLogger("ebpflb.agent")

# A pass looks into all network namespaces.
_PERIOD_SECONDS = 10.0
# After a change, if endpoints may be gone whose connections are to be reset.
_PAUSE_SECONDS = 1.0
# A pass that took long is followed by so many times that, so that it leaves the loop to changes.
_REST = 19
# After some were ended: their clients have connected anew, and may have got the same endpoints.
_AGAIN_SECONDS = 2.0


@dataclass(eq=False)
class EndingConnections(Watcher):
    """While any Service has an annotation that ends connections."""

    _endings: Endings = field(default_factory=Endings, init=False)
    _rehearsal: Endings = field(default_factory=partial(Endings, is_rehearsal=True), init=False)
    _last: float = field(default=-_PERIOD_SECONDS, init=False)
    _rest: float = field(default=0.0, init=False)
    _is_failing: bool = field(default=False, init=False)

    def synced(self) -> None:
        services = self._services()
        if any(each.annotated.resets_gone for each in services):
            pause = max(_PAUSE_SECONDS, self._rest)
            self.timers.start(Task.END, max(0.0, self._last + pause - self.clock()))
        elif services:
            self.timers.ensure(Task.END, _PERIOD_SECONDS)

    def run(self) -> None:
        services = self._services()
        self._last = self.clock()
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
        self._rest = _REST * (self.clock() - self._last)
        self.timers.ensure(Task.END, max(wait, self._rest))

    def _services(self) -> list[Service]:
        found = map(self.changes.served, self.changes.with_ending)
        return [each for each in found if each]

    def _end(self, services: list[Service]) -> bool:
        """Whether any connection was ended."""
        held = self.dataplane.held_connections(
            {port.name for service in services for port in service.ports}
        )
        wanted, only_shown = list[Ending](), list[Ending]()
        for service in services:
            known = self.changes.plan(service.name), self.changes.backups.slices(service)
            wanted += self._endings.choose(service, *known, held, self.clock())
            only_shown += self._rehearsal.choose(service, *known, held, self.clock())
        self._tell(only_shown, "connections would be ended: the annotation says dry-run")
        ended = self.dataplane.end_connections(wanted)
        self._tell(ended, "connections ended")
        for reason, count in Counter(each.reason for each in ended).items():
            self.observers.metrics.ended(reason, count)
        return bool(ended)

    def _tell(self, endings: list[Ending], text: str) -> None:
        counts = Counter((ServiceName(*each.port[:2]), each.reason) for each in endings)
        for (service, reason), count in sorted(counts.items()):
            _log.info(text, extra=fields(service=service, reason=str(reason), count=count))

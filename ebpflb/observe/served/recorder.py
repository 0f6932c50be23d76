# SPDX-License-Identifier: Apache-2.0
"""Records what comes into force: the loop says what and when, a thread of its own writes it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from ebpflb.config.moment import rfc3339_ns
from ebpflb.log import fields
from ebpflb.model.address import SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionChange
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.service import ServicePortName
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.records import ServedChange, line_of, line_of_loss
from ebpflb.source.interface import SourceEvent

_log = logging.getLogger("ebpflb.observe")

# Changes that come into force within such a time are written together.
TOGETHER_SECONDS = 0.2
RETRY_SECONDS = 60
STOP_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
# Changes that may wait for the disk; with more, all that is in force is written instead.
_MOST_WAITING = 100_000
_SECOND = 1_000_000_000


class _InForce(NamedTuple):
    """time: nanoseconds since 1970."""

    time: int
    change: ServedChange


class ServedRecorder:
    """note(), ejected() and in_force() are for the loop, write() is for one other thread."""

    def __init__(
        self, changes: Changes, kept: KeptChanges | None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """`kept`: None to record nothing. `clock`: nanoseconds since 1970."""
        self._changes = changes
        self._kept = kept
        self._clock = clock
        self._begun = False
        # When everything was in force for the first time, until that is written.
        self._first = 0
        # Not in force yet.
        self._pending: list[ServedChange] = []
        # In force, and not written yet.
        self._waiting: list[_InForce] = []
        self._ejected: dict[tuple[ServicePortName, SocketAddress], EjectionChange] = {}
        self._lock = threading.Lock()
        # Since when changes are not written, and when to try again; 0: all are.
        self._lost_since = 0
        self._again_at = 0
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-served", daemon=True)

    def note(self, event: SourceEvent) -> None:
        """These objects are known from now on."""
        if self._kept and self._begun:
            self._pending += (each for each in event.removals if self._matters(each))
            self._pending += (each for each in event.upserts if self._matters(key_of(each)))

    def ejected(self, change: EjectionChange) -> None:
        """An endpoint is to get no new connections, or to be back."""
        if self._kept:
            self._pending.append(change)

    def in_force(self) -> None:
        """All that was noted is in force now; the first time, all that there is."""
        if self._begun and not self._pending:
            return
        now, pending, self._pending = self._clock(), self._pending, []
        if not self._begun:
            self._first, self._begun = now, True
        with self._lock:
            for change in pending:
                if isinstance(change, EjectionChange):
                    self._note_ejection(change)
            if len(self._waiting) > _MOST_WAITING:
                self._lost_since = self._lost_since or now
            else:
                self._waiting += (_InForce(now, each) for each in pending)
        self._changed.set()

    def _note_ejection(self, change: EjectionChange) -> None:
        if change.seconds:
            self._ejected[change.port, change.place] = change
        else:
            self._ejected.pop((change.port, change.place), None)

    def start(self) -> None:
        if self._kept:
            self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end; waits at most 2 seconds for a hanging disk."""
        self._stopped.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._changed.wait(RETRY_SECONDS if self._lost_since else None)
            self._changed.clear()
            is_last = self._stopped.wait(TOGETHER_SECONDS)
            self.write()

    def write(self) -> None:
        """Write what came into force since the last time."""
        if not (self._kept and self._begun):
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            lost_since, self._lost_since = self._lost_since, 0
        now = self._clock()
        if lost_since and now < self._again_at:
            self._lose(lost_since)
            return
        try:
            if waiting and not lost_since:
                self._kept.add([line_of(rfc3339_ns(each.time), each.change) for each in waiting])
            if lost_since or self._kept.needs_begin:
                moment, self._first = self._first or now, 0
                self._kept.begin(partial(self._everything, lost_since), self._pause, moment)
        except OSError as error:
            self._fail(lost_since or (waiting[0].time if waiting else now), now, error)
        else:
            self._succeed(lost_since)

    def _everything(self, lost_since: int, now: str) -> Iterator[bytes]:
        if lost_since:
            yield line_of_loss(now, rfc3339_ns(lost_since))
        with self._lock:
            ejected = list(self._ejected.values())
        objects = (each for each in self._changes.objects() if self._matters(key_of(each)))
        for change in chain[ServedChange](objects, ejected):
            yield line_of(now, change)

    def _matters(self, key: ObjectKey) -> bool:
        """Whether plans depend on it."""
        if key.kind is Kind.NODE:
            return key.name == self._changes.node.name
        return key.kind is not Kind.POD

    def _pause(self) -> None:
        """Not once stopped."""
        self._stopped.wait(_PAUSE_SECONDS)

    def _fail(self, lost_since: int, now: int, error: OSError) -> None:
        if not self._again_at:
            _log.error("cannot keep what is served: %s; retrying", error.strerror)
        self._lose(lost_since)
        self._again_at = now + RETRY_SECONDS * _SECOND

    def _lose(self, since: int) -> None:
        """More may have been lost meanwhile, later."""
        with self._lock:
            self._lost_since = since

    def _succeed(self, lost_since: int) -> None:
        if lost_since:
            self._again_at = 0
            lost = fields(lost_since=rfc3339_ns(lost_since))
            _log.info("keeping what is served again", extra=lost)

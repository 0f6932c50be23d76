# SPDX-License-Identifier: Apache-2.0
"""From changed objects to the dataplane: what to plan, how to write it, and what did not fit."""

import logging
from collections.abc import Iterable, Mapping
from errno import E2BIG
from typing import NamedTuple

from ebpflb.agent.interface import Dataplane, Desired, Refused
from ebpflb.agent.plan_totals import Tally
from ebpflb.errors import EbpflbError, MapError
from ebpflb.log import fields
from ebpflb.model.changes import Changes
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName

_log = logging.getLogger("ebpflb.agent")


class Written(NamedTuple):
    """What a write was about; `full`: everything was compared."""

    services: int
    full: bool


class Writer:
    """Writes what `changes` has gathered. Nothing is written before the first `write()`.

    After a MapError nobody knows what was written: call `compare_everything()`. What an earlier
    run left in force stays until `forget_others()`.
    """

    def __init__(self, changes: Changes, dataplane: Dataplane) -> None:
        self.tally = Tally()
        self.refused: dict[ServiceName, MapError] = {}
        # Replaced as a whole: the thread that answers them reads it.
        self.health_checks: Mapping[ServiceName, HealthCheck] = {}
        self._changes = changes
        self._dataplane = dataplane
        self._started = False
        self._compare = False
        self._keep_others = True

    @property
    def is_full_next(self) -> bool:
        """Whether the next write compares all Services."""
        return self._compare or not self._started

    @property
    def is_complete(self) -> bool:
        """Whether all that was planned is in force, but for Services that nothing has room for."""
        return self._started and not self._compare and not is_full(self.refused.values())

    def compare_everything(self) -> None:
        """Have the next write compare all Services."""
        self._compare = True

    def forget_others(self) -> None:
        """All that is wanted is known: remove the Services of an earlier run that are not."""
        if self._keep_others:
            self._keep_others = False
            self._compare = True

    def write(self, *, may_grow: bool) -> Written | None:
        """Write what has changed; None when nothing has. MapError when a write failed.

        `may_grow`: make more room, which takes a second, where Services do not fit.
        """
        names = self._changes.take()
        full = self.is_full_next
        if not names and not full:
            return None
        desired = self._plan(self._changes.names() if full else names)
        refused = self._give(desired, full=full)
        self._compare = False
        self._note(desired, refused, full=full)
        if may_grow and is_full(refused.values()):
            self.grow()
        return Written(len(desired), full)

    def grow(self) -> None:
        """Make more room and give every Service another try. MapError when a write failed."""
        desired = self._plan(self._changes.names())
        try:
            refused = self._dataplane.grow(desired, keep_others=self._keep_others)
        except MapError:
            raise
        except EbpflbError as error:
            _log.error("cannot make room: %s", error)
        else:
            self._note(desired, refused, full=True)

    def _plan(self, names: Iterable[ServiceName]) -> Desired:
        return {name: self._changes.plan(name) for name in names}

    def _give(self, desired: Desired, *, full: bool) -> Refused:
        if not self._started:
            refused = self._dataplane.start(desired, keep_others=self._keep_others)
            self._started = True
        elif full:
            refused = self._dataplane.resync(desired, keep_others=self._keep_others)
        else:
            refused = self._dataplane.apply(desired)
        return refused

    def _note(self, desired: Desired, refused: Refused, *, full: bool) -> None:
        before = dict(self.refused)
        if full:
            self.refused.clear()
            self.tally = Tally()
        for name, frontends in desired.items():
            self.refused.pop(name, None)
            self.tally.replace(name, frontends)
        self.refused.update(refused)
        self.health_checks = self._checks(desired, full=full)
        _log_refused(before, self.refused)

    def _checks(
        self, names: Iterable[ServiceName], *, full: bool
    ) -> dict[ServiceName, HealthCheck]:
        found = {name: self._changes.health_check(name) for name in names}
        before = {} if full else self.health_checks
        return {name: check for name, check in {**before, **found}.items() if check}


def is_full(errors: Iterable[EbpflbError]) -> bool:
    """Whether more room in the maps would help."""
    return any(isinstance(error, MapError) and error.errno == E2BIG for error in errors)


def _log_refused(before: Refused, now: Refused) -> None:
    for name in sorted(now.keys() - before.keys()):
        _log.error("does not fit and keeps what it had: %s", now[name], extra=fields(service=name))
    for name in sorted(before.keys() - now.keys()):
        _log.info("fits now", extra=fields(service=name))

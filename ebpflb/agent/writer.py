# SPDX-License-Identifier: Apache-2.0
"""From changed objects to the dataplane: what to plan, how to write it, and what does not fit."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import E2BIG
from functools import lru_cache
from typing import NamedTuple

from ebpflb.agent.interface import Dataplane, Desired, Refused
from ebpflb.errors import EbpflbError, MapError
from ebpflb.log import fields
from ebpflb.model.address import family_of
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionState
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.plan import Frontend, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName
from ebpflb.words.backup import BackupUse

_log = logging.getLogger("ebpflb.agent")

# How many Services a log line names.
_NAMED = 3
# How many Services are compared between two changes: a few milliseconds.
_PART = 32
_PolicyAndFamily = tuple[str, str]


class _Counted(NamedTuple):
    """What PlanTotals counts for one Service."""

    frontends: int = 0
    ejected: int = 0
    no_local: Sequence[_PolicyAndFamily] = ()


# Nearly all Services have equal counts.
_counted = lru_cache(maxsize=1024)(_Counted)


class PlanTotals:
    """Running totals over the plans of all Services.

    no_local counts, by policy (internal, external) and family, the Service ports with policy Local
    that drop because all their endpoints are on other nodes. ejected counts the endpoints that are
    ejected or on trial. backups: the Services whose new connections go to their backup.
    """

    def __init__(self) -> None:
        self.frontends = 0
        self.ejected = 0
        self.no_local: Counter[_PolicyAndFamily] = Counter()
        self.backups: dict[ServiceName, BackupUse] = {}
        self._counted: dict[ServiceName, _Counted] = {}

    @property
    def services(self) -> int:
        """How many Services have frontends."""
        return len(self._counted)

    def replace(self, name: ServiceName, frontends: Sequence[Frontend]) -> None:
        """Recount a Service; one without frontends is removed."""
        old = self._counted.pop(name, _Counted())
        new = _counted(len(frontends), _ejected(frontends), _no_local(frontends))
        if frontends:
            self._counted[name] = new
        self.frontends += new.frontends - old.frontends
        self.ejected += new.ejected - old.ejected
        self.no_local.subtract(old.no_local)
        self.no_local.update(new.no_local)
        self.backups.pop(name, None)
        if uses := {each.backup for each in frontends} - {BackupUse.NONE}:
            self.backups[name] = BackupUse.ONLY if BackupUse.ONLY in uses else BackupUse.SPILL


def _ejected(frontends: Sequence[Frontend]) -> int:
    return len(
        {
            (frontend.service, backend.address, backend.port)
            for frontend in frontends
            for backend in (
                *frontend.ejected,
                *frontend.local.backends,
                *frontend.others.backends,
            )
            if backend.ejection in (EjectionState.TRIAL, EjectionState.EJECTED)
        }
    )


def _no_local(frontends: Sequence[Frontend]) -> Sequence[_PolicyAndFamily]:
    """One entry per Service port, however many of its frontends drop."""
    found = set()
    for frontend in frontends:
        if not frontend.others.backends and frontend.others.if_empty is IfEmpty.DROP:
            is_internal = frontend.type is FrontendType.CLUSTER_IP
            family = family_of(frontend.key.address).text
            found.add((frontend.service, "internal" if is_internal else "external", family))
    return tuple(sorted((policy, family) for _, policy, family in found))


class WriteDone(NamedTuple):
    """How many Services a write compared; `full`: it compared all of them."""

    services: int
    full: bool


class ServiceWriter:
    """Writes the changes gathered in `changes`. Nothing is written before the first `write()`.

    After a MapError the state of the maps is unknown: call `compare_everything()`. Services of an
    earlier run stay in force until `forget_others()`.
    """

    def __init__(self, changes: Changes, dataplane: Dataplane) -> None:
        self.totals = PlanTotals()
        self.refused: dict[ServiceName, MapError] = {}
        # Replaced as a whole, because the health check thread reads it.
        self.health_checks: Mapping[ServiceName, HealthCheck] = {}
        # As last logged.
        self._told_refused: Refused = {}
        self._changes = changes
        self._dataplane = dataplane
        self._started = False
        self._compare = False
        # What is left of a pass of `compare_some()`.
        self._pass: Iterator[str] | None = None
        # Services that the next write compares though nothing has changed them.
        self._again: set[ServiceName] = set()
        self._keep_others = True

    @property
    def is_full_next(self) -> bool:
        """Whether the next write compares all Services."""
        return self._compare or not self._started

    @property
    def is_complete(self) -> bool:
        """Whether all plans are in force, except those too large for any map."""
        return self._started and not self._compare and not lacks_room(self.refused.values())

    def compare_everything(self) -> None:
        """Make the next write compare all Services."""
        self._compare = True

    def compare_some(self) -> bool:
        """Compare the next maps, or Services, with what they should be; true at the end of a pass.

        In parts, because to compare everything takes seconds where there are many Services, and a
        change waits meanwhile. Services are compared by the next `write()`. MapError.
        """
        self._pass = self._pass or self._parts()
        differs = next(self._pass, None)
        if differs:
            _log.warning("a map has been changed by somebody else", extra=fields(map=differs))
            self.compare_everything()
        if differs is None or differs:
            self._pass = None
        return self._pass is None

    def _parts(self) -> Iterator[str]:
        yield from self._dataplane.compare()
        names = sorted(self._changes.names())
        for first in range(0, len(names), _PART):
            self._again.update(names[first : first + _PART])
            yield ""

    def forget_others(self) -> None:
        """Call when all objects are known: removes other Services, left by an earlier run."""
        if self._keep_others:
            self._keep_others = False
            self._compare = True

    def write(self, *, may_grow: bool) -> WriteDone | None:
        """Write what has changed; None if nothing has. MapError if a write failed.

        `may_grow`: replace maps that are too small by larger ones, which takes a second.
        """
        names = self._changes.take() | self._again
        self._again.clear()
        full = self.is_full_next
        if not names and not full:
            return None
        desired = self._plan(self._changes.names() if full else names, full=full)
        # Before any frontend uses tunnels, and before hooks switch to other maps.
        self.follow_tunnels(compare=full)
        if not self._started:
            refused = self._dataplane.start(desired, keep_others=self._keep_others)
            self._started = True
        elif full:
            refused = self._dataplane.resync(desired, keep_others=self._keep_others)
        else:
            refused = self._dataplane.apply(desired)
        self._compare = False
        self._note(desired, refused, full=full)
        if may_grow and lacks_room(refused.values()):
            self.grow()
        self._tell_refused()
        return WriteDone(len(desired), full)

    def grow(self) -> None:
        """Make more room and try every Service again. MapError when a write failed."""
        self._grow(self._dataplane.grow)

    def grow_flows(self) -> bool:
        """Make more room for flows; false when that is impossible. MapError as for `grow()`."""
        return self._grow(self._dataplane.grow_flows)

    def _grow(self, grow: Callable[..., Refused]) -> bool:
        desired = self._plan(self._changes.names(), full=True)
        try:
            refused = grow(desired, keep_others=self._keep_others)
        except MapError:
            raise
        except EbpflbError as error:
            _log.error("cannot enlarge the maps: %s", error)
            return False
        self._note(desired, refused, full=True)
        self._tell_refused()
        return True

    def _plan(self, names: Iterable[ServiceName], *, full: bool) -> Desired:
        changes = self._changes
        desired = {name: changes.plan(name) or changes.withdrawn(name) for name in names}
        if changes.tunnels:
            changes.tunnels.set_services(desired, others_gone=full)
        return desired

    def follow_tunnels(self, *, compare: bool = False) -> None:
        """Update the tunnels for DSR in the maps, if they have changed. MapError.

        `compare`: with the full contents of the maps.
        """
        tunnels, keep_others = self._changes.tunnels, self._keep_others
        if tunnels and (compare or tunnels.has_changed):
            change = tunnels.take()
            self._dataplane.follow_tunnels(change, keep_others=keep_others, compare=compare)

    def _note(self, desired: Desired, refused: Refused, *, full: bool) -> None:
        checks = dict(self.health_checks)
        if full:
            self._pass = None
            self.refused.clear()
            self.totals = PlanTotals()
            checks.clear()
        for name, frontends in desired.items():
            self.refused.pop(name, None)
            self.totals.replace(name, [each for each in frontends if not each.withdrawn])
            checks.pop(name, None)
            if check := self._changes.health_check(name):
                checks[name] = check
        self.refused.update(refused)
        self.health_checks = checks

    def _tell_refused(self) -> None:
        """Log what has changed, in one line however many Services there are."""
        before, self._told_refused = self._told_refused, dict(self.refused)
        if new := sorted(self.refused.keys() - before.keys()):
            _log.error(
                "Services do not fit into the maps, keeping their old state: %s",
                self.refused[new[0]],
                extra=fields(count=len(new), services=_first(new)),
            )
        if gone := sorted(before.keys() - self.refused.keys()):
            text = "Services fit now or were removed"
            _log.info(text, extra=fields(count=len(gone), services=_first(gone)))


def lacks_room(errors: Iterable[EbpflbError]) -> bool:
    """Whether larger maps would help."""
    return any(isinstance(error, MapError) and error.errno == E2BIG for error in errors)


def _first(names: Sequence[ServiceName]) -> str:
    return ", ".join(map(str, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")

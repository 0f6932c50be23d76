# SPDX-License-Identifier: Apache-2.0
"""Ejection: which endpoints get no new connections because earlier ones failed, and for how long.

The dataplane counts consecutive connections that an endpoint refused or did not answer. At the
threshold the endpoint is ejected, for a time that doubles with each consecutive ejection. Then it
is on trial: it gets one connection at a time. If one succeeds the endpoint is back, otherwise it is
ejected again. Few are on trial at a time; the others stay ejected until their turn. Times are in
seconds, by any clock that never goes back.

A client can have connections fail that the endpoint never sees. So an endpoint is only ejected, and
a trial only failed, once MOST_WITNESSES clients have seen it fail, or all that there are.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import NamedTuple

from ebpflb.model.address import Protocol, SocketAddress
from ebpflb.model.service import ServicePort, ServicePortName

# Where the dataplane's failure count starts while an endpoint is on trial.
TRIAL_COUNT = 1
# When a trial is over: after this long without a result of its connections, or without any
# connection while another endpoint waits for its trial.
PROBE_SECONDS = 5.0
# How many clients must have seen an endpoint fail, unless the Service port has fewer.
MOST_WITNESSES = 3
# Per set of endpoints. A new flow tries at most three slots, the first of which may come from a
# lookup table (bpf/backend.h): with more on trial it might end at one already tried.
MOST_ON_TRIAL = 2


class EjectionState(IntEnum):
    """An endpoint as the dataplane sees it. WATCHED: its failures are counted."""

    UNWATCHED = 0
    WATCHED = 1
    TRIAL = 2
    EJECTED = 3

    # Enum's own is slower, and backends are hashed by the thousand.
    __hash__ = int.__hash__

    @classmethod
    def of(cls, word: str) -> "EjectionState":
        """KeyError for an unknown word."""
        return cls[word.upper()]

    @property
    def word(self) -> str:
        """For programs."""
        return self.name.lower()

    @property
    def shown(self) -> str:
        """For people."""
        return "on trial" if self is EjectionState.TRIAL else self.word

    @property
    def is_left_out(self) -> bool:
        """Whether it gets no new connections, or only one."""
        return self >= EjectionState.TRIAL


EJECTION_STATES = tuple(each.word for each in EjectionState)
"""In ascending order: when nodes differ, the last one is shown."""
LEFT_OUT = tuple(each.word for each in EjectionState if each.is_left_out)


class FailureCount(NamedTuple):
    """in_a_row: failures since the last success. tried, on_trial: as the dataplane has them now.

    witnesses: how many clients have failed. clients: how many the Service port has had lately, of
    the endpoint's family; regulars: those whose last connection was to this endpoint. Only clients
    that have completed a handshake count.
    """

    in_a_row: int
    tried: bool = False
    on_trial: bool = False
    witnesses: int = 1
    clients: int = 1
    regulars: int = 1


FailureCounts = Mapping[ServicePortName, Mapping[SocketAddress, FailureCount]]


class Times(NamedTuple):
    """How long the first ejection lasts, and the longest that any may last."""

    first: float = 10.0
    longest: float = 300.0


class PortWatch(NamedTuple):
    """Ejection of one Service port. ejected: worst first."""

    is_on: bool
    ejected: tuple[SocketAddress, ...] = ()
    on_trial: frozenset[SocketAddress] = frozenset()

    def states(self, usable: Sequence[SocketAddress]) -> Mapping[SocketAddress, EjectionState]:
        """For the usable endpoints of some clients; leaves out those that are only watched.

        Never ejects more than half: none of one, one of two or three.
        """
        ejected = [place for place in self.ejected if place in usable][: _most(usable)]
        return {
            **dict.fromkeys(self.on_trial.intersection(usable), EjectionState.TRIAL),
            **dict.fromkeys(ejected, EjectionState.EJECTED),
        }


NO_WATCH = PortWatch(is_on=False)


class EjectionChange(NamedTuple):
    """seconds: how long the endpoint is now ejected; 0: no longer, it is back or gone.

    failures: in a row.
    """

    port: ServicePortName
    place: SocketAddress
    seconds: float
    failures: int = 0
    times: int = 0


@dataclass(slots=True)
class _Offender:
    """times: ejections in a row. until: when its trial is due, or when the current one began.

    witnesses: how many clients had seen it fail. tried_at: None until a trial has a connection.
    """

    failures: int
    witnesses: int
    until: float
    times: int = 0
    on_trial: bool = False
    tried_at: float | None = None


_Offenders = dict[SocketAddress, _Offender]


class Ejections:
    """The ejected endpoints and those on trial, of all Service ports."""

    def __init__(self, threshold: int = 0, times: Times = Times()) -> None:  # noqa: B008  frozen
        """`threshold`: for Services that set none; 0 disables ejection."""
        self._threshold = threshold
        self._times = times
        self._ports: dict[ServicePortName, _Offenders] = {}

    @property
    def ports(self) -> Collection[ServicePortName]:
        """The Service ports with such endpoints."""
        return self._ports.keys()

    def threshold(self, port: ServicePort) -> int:
        """After how many failures in a row its endpoints are ejected, 0 for never.

        Never for UDP, which has no connections: datagrams without an answer are normal (syslog),
        and an ICMP error is easily forged.
        """
        if port.name.protocol is Protocol.UDP:
            return 0
        own = port.annotated.ejection
        return self._threshold if own is None else own

    def watch(self, port: ServicePort) -> PortWatch:
        if not self.threshold(port):
            return NO_WATCH
        offenders = self._ports.get(port.name, {})
        ejected = [place for place, each in offenders.items() if not each.on_trial]
        ejected.sort(key=lambda place: _badness(offenders, place), reverse=True)
        return PortWatch(True, tuple(ejected), frozenset(offenders.keys() - set(ejected)))

    def forget(self, port: ServicePortName) -> list[EjectionChange]:
        """Call when the port no longer has ejection. Returns the changes."""
        return [EjectionChange(port, place, 0) for place in self._ports.pop(port, ())]

    def recall(self, change: EjectionChange) -> None:
        """An endpoint is ejected or back since then; there are no more trials."""
        offenders = self._ports.setdefault(change.port, {})
        offenders.pop(change.place, None)
        if change.seconds:
            offender = _Offender(change.failures, 0, inf, change.times)
            offenders[change.place] = offender

    def observe(
        self,
        port: ServicePortName,
        threshold: int,
        sets: Sequence[Collection[SocketAddress]],
        readings: Mapping[SocketAddress, FailureCount],
        now: float,
    ) -> list[EjectionChange]:
        """Re-evaluate the port. Returns the changes, except trials that begin.

        threshold: failures in a row. sets: the usable endpoints, once per kind of client and
        family; at most half of each is ejected or on trial.
        """
        offenders = self._ports.get(port, {})
        usable = frozenset[SocketAddress]().union(*sets)
        gone = sorted(offenders.keys() - usable)
        for place in gone:
            del offenders[place]
        changes = [EjectionChange(port, place, 0) for place in gone]
        changes += (
            change
            for place in list(offenders)
            for change in self._reconsider(port, offenders, place, readings.get(place), now)
        )
        changes += (EjectionChange(port, place, 0) for place in _release_surplus(offenders, sets))
        _begin_trials(offenders, sets, now)
        worst = sorted(readings.items(), key=lambda item: (-item[1].in_a_row, item[0]))
        for place, reading in worst:
            is_new = place in usable and place not in offenders
            is_due = reading.in_a_row >= threshold and _suffice(reading.witnesses, reading)
            if is_new and is_due and _has_room(offenders, sets, place):
                offenders[place] = _Offender(reading.in_a_row, reading.witnesses, now)
                changes.append(self._eject(port, offenders[place], place, now))
        if offenders:
            self._ports[port] = offenders
        else:
            self.forget(port)
        return changes

    def _reconsider(
        self,
        port: ServicePortName,
        offenders: _Offenders,
        place: SocketAddress,
        reading: FailureCount | None,
        now: float,
    ) -> Iterable[EjectionChange]:
        offender = offenders[place]
        if reading is None or (offender.on_trial and not reading.on_trial):
            # The dataplane does not know about the trial yet.
            return
        if offender.on_trial:
            is_back = reading.in_a_row == 0
        else:
            # There may be more clients by now.
            is_back = not _suffice(offender.witnesses, reading)
        if is_back:
            del offenders[place]
            yield EjectionChange(port, place, 0)
        elif offender.on_trial:
            yield from self._try(port, offender, place, reading, now)

    def _try(
        self,
        port: ServicePortName,
        offender: _Offender,
        place: SocketAddress,
        reading: FailureCount,
        now: float,
    ) -> Iterable[EjectionChange]:
        """A trial without a success so far."""
        if reading.in_a_row > TRIAL_COUNT and _suffice(reading.witnesses, reading):
            offender.failures += 1
            offender.witnesses = reading.witnesses
            yield self._eject(port, offender, place, now)
        elif _is_undecided(offender, reading, now):
            offender.failures += 1
            # For as long as before.
            offender.times -= 1
            yield self._eject(port, offender, place, now)
        elif not reading.tried and now - offender.until >= PROBE_SECONDS:
            # Let the next one try; if none waits, this trial goes on.
            offender.on_trial, offender.until = False, now

    def _eject(
        self, port: ServicePortName, offender: _Offender, place: SocketAddress, now: float
    ) -> EjectionChange:
        seconds = min(self._times.first * 2**offender.times, self._times.longest)
        offender.times += 1
        offender.until = now + seconds
        offender.on_trial = False
        return EjectionChange(port, place, seconds, offender.failures, offender.times)


def _suffice(witnesses: int, reading: FailureCount) -> bool:
    """Whether so many clients may speak for all."""
    return witnesses >= min(MOST_WITNESSES, reading.clients)


def _is_undecided(offender: _Offender, reading: FailureCount, now: float) -> bool:
    """Whether the trial's connections had no outcome, or too few clients had any."""
    if reading.tried and offender.tried_at is None:
        offender.tried_at = now
    return offender.tried_at is not None and now - offender.tried_at >= PROBE_SECONDS


def _begin_trials(
    offenders: _Offenders, sets: Iterable[Collection[SocketAddress]], now: float
) -> None:
    """Those due for longest come first."""
    on_trial = {place for place, each in offenders.items() if each.on_trial}
    due = [place for place, each in offenders.items() if not each.on_trial and now >= each.until]
    for place in sorted(due, key=lambda each: (offenders[each].until, each)):
        mine = [places for places in sets if place in places]
        if all(len(on_trial & set(places)) < MOST_ON_TRIAL for places in mine):
            on_trial.add(place)
            offender = offenders[place]
            offender.on_trial, offender.until, offender.tried_at = True, now, None


def _badness(offenders: _Offenders, place: SocketAddress) -> tuple[int, int, SocketAddress]:
    return offenders[place].times, offenders[place].failures, place


def _most(places: Collection[SocketAddress]) -> int:
    """How many of these endpoints may be left out."""
    return len(places) // 2


def _has_room(
    offenders: _Offenders, sets: Iterable[Collection[SocketAddress]], place: SocketAddress
) -> bool:
    return all(
        len(offenders.keys() & set(places)) < _most(places) for places in sets if place in places
    )


def _release_surplus(
    offenders: _Offenders, sets: Iterable[Collection[SocketAddress]]
) -> Iterable[SocketAddress]:
    """If endpoints are gone and more than half of the rest are out, let the best return."""
    for places in sets:
        out = sorted(offenders.keys() & set(places), key=lambda each: _badness(offenders, each))
        for place in out[: max(0, len(out) - _most(places))]:
            del offenders[place]
            yield place

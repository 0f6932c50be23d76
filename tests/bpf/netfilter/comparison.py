# SPDX-License-Identifier: Apache-2.0
"""Plays scripts through both implementations, and compares them step by step."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.bpf.harness.packets import TCP_KINDS, UDP_KINDS, Kind
from tests.bpf.netfilter.deviations import DEVIATIONS, Case, Deviation, is_harmed
from tests.bpf.netfilter.ours import LANES, Lane, Ours
from tests.bpf.netfilter.script import Pause, Script, Sent, Silence
from tests.bpf.netfilter.seen import Seen
from tests.bpf.netfilter.tcp import tcp_script
from tests.bpf.netfilter.theirs import Netfilter
from tests.bpf.netfilter.udp import udp_script
from tests.bpf.netfilter.wire import Flow

FIRST_PORT = 20000
_PAUSE = 2.1
# What a busy machine takes between a packet and a look at its flow.
_TOLERANCE = 5


class Record:
    """A script through netfilter: what was observed after each step."""

    def __init__(self, script: Script, flow: Flow) -> None:
        self.script, self._flow = script, flow
        self.seen: list[Seen] = []

    def play(self, theirs: Netfilter) -> None:
        """Play to the next pause or to the end."""
        for step in self.script.steps[len(self.seen) :]:
            outcome = None
            if isinstance(step, Sent):
                outcome = theirs.play(self._flow, step)
            elif isinstance(step, Silence):
                theirs.age(self._flow, step.seconds)
            self.seen.append(theirs.look(self._flow, outcome))
            if isinstance(step, Pause):
                return


class Talk:
    """The same script through one of ebpflb's lanes."""

    def __init__(self, record: Record, lane: Lane, flow: Flow) -> None:
        self._record, self._lane, self._flow = record, lane, flow
        self._last = Seen(None), Seen(None)
        self._next = 0
        self._told: list[str] = []

    def play(self, ours: Ours) -> Iterator[str]:
        """Play as far as netfilter has; returns the names of deviations. AssertionError: an unknown
        one.
        """
        ours.begin(self._flow.client.port)
        while self._next < len(self._record.seen):
            case = self._case(ours)
            self._told.append(f"{case.step}\n    ours:   {case.ours}\n    theirs: {case.theirs}")
            self._last = case.ours, case.theirs
            self._next += 1
            if is_harmed(case):
                raise AssertionError(self._told_as("a stranger has changed it"))
            if is_same(case):
                continue
            found = self._explained(case)
            yield found.name
            if found.is_last:
                self._next = len(self._record.script.steps)

    def _case(self, ours: Ours) -> Case:
        step, theirs = self._record.script.steps[self._next], self._record.seen[self._next]
        outcome = None
        if isinstance(step, Sent):
            outcome = ours.play(self._lane, self._flow, step)
        elif isinstance(step, Silence):
            ours.age(self._flow, step.seconds)
        view = ours.look(self._lane, self._flow, outcome)
        before, proto = self._record.script.steps[: self._next], self._record.script.proto
        return Case(step, before, proto, self._lane.has_dsr, view, theirs, *self._last)

    def _explained(self, case: Case) -> Deviation:
        for each in DEVIATIONS:
            if each.applies(case):
                return each
        raise AssertionError(self._told_as("no deviation explains it"))

    def _told_as(self, what: str) -> str:
        where = f"seed {self._record.script.seed}, {self._flow.kind}, {self._lane.name}"
        return "\n".join([f"{where}: {what}", *self._told])


def is_same(case: Case) -> bool:
    """It is no difference if ebpflb remembers a flow longer."""
    ours, theirs = case.ours, case.theirs
    is_known_as_long = ours.seconds >= theirs.seconds - _TOLERANCE
    return (ours.outcome, ours.state) == (theirs.outcome, theirs.state) and is_known_as_long


def play_tcp(ours: Ours, theirs: Netfilter, seeds: Iterable[int]) -> Counter[str]:
    """Returns how often each deviation was met."""
    scripts = [tcp_script(seed) for seed in seeds]
    return Counter(
        name
        for kind in TCP_KINDS
        for number, script in enumerate(scripts)
        for name in play(ours, theirs, [(kind, script, FIRST_PORT + number)])
    )


def play_udp(ours: Ours, theirs: Netfilter, seeds: Iterable[int]) -> Counter[str]:
    """As `play_tcp`. All scripts pause at once."""
    scripts = [udp_script(seed) for seed in seeds]
    return Counter(
        play(
            ours,
            theirs,
            [
                (kind, script, FIRST_PORT + number)
                for kind in UDP_KINDS
                for number, script in enumerate(scripts)
            ],
        )
    )


def play(
    ours: Ours, theirs: Netfilter, scripts: Iterable[tuple[Kind, Script, int]]
) -> Iterator[str]:
    """Each script gets a client port of its own. Lanes to the same backend share a record."""
    records: list[Record] = []
    talks: list[Talk] = []
    for kind, script, port in scripts:
        of_place = {
            lane.is_elsewhere: Record(script, lane.flow(kind, port)) for lane in reversed(LANES)
        }
        records += of_place.values()
        talks += [Talk(of_place[lane.is_elsewhere], lane, lane.flow(kind, port)) for lane in LANES]
    ours.forget()
    theirs.forget()
    while any(len(record.seen) < len(record.script.steps) for record in records):
        if any(record.seen for record in records):
            time.sleep(_PAUSE)
        for record in records:
            record.play(theirs)
        for talk in talks:
            yield from talk.play(ours)

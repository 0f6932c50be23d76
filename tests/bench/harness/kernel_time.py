# SPDX-License-Identifier: Apache-2.0
"""The kernel's own statistics of BPF programs: number of runs, and their time (bpf_stats).

The kernel reads its clock before and after each run, so that every run seems longer by one reading.
How long a reading takes depends on the processor's current load: programs that return at once are
attached where the packets of the same connections enter and leave the pod. The shortest time that
one of them seems to take is subtracted from each run of the others, the same on both sides of a
comparison.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from socket import if_nametoindex
from statistics import median
from typing import NamedTuple, Self

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.uapi import AttachType, ProgType
from ebpflb.dataplane.load.pins import newest_generation
from ebpflb.lab import Lab, Member
from ebpflb.lab.network import UPLINK
from tests.bench.harness import nothing
from tests.bench.harness.load import Load
from tests.bench.harness.options import BenchError

# BPF_STATS_RUN_TIME
_RUN_TIME = 0
_ATTEMPTS = 5

# Opens the programs to measure, by descriptor: those current at that time.
Programs = Callable[[], AbstractContextManager[Sequence[int]]]


class Total(NamedTuple):
    """The number of runs of programs of one name, and nanoseconds altogether."""

    runs: int
    ns: float


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What programs did, by their names, for this many connections; `clocks`: those that do
    nothing.

    Nanoseconds include the kernel's clock readings until less().
    """

    connections: int
    programs: Mapping[str, Total]
    clocks: Sequence[Total]

    def less(self, reading: float) -> Self:
        """Subtract the nanoseconds of a clock reading, once for each run."""
        programs = {
            name: Total(runs, ns - runs * reading) for name, (runs, ns) in self.programs.items()
        }
        return replace(self, programs=programs)

    @property
    def ns(self) -> float:
        """Nanoseconds per connection, of all programs."""
        return sum(map(self.ns_of, self.programs))

    def ns_of(self, name: str) -> float:
        """Nanoseconds per connection, of one program."""
        return self.programs[name].ns / self.connections if name in self.programs else 0.0

    def runs_of(self, name: str) -> float:
        """Runs per connection, of one program."""
        return self.programs[name].runs / self.connections if name in self.programs else 0.0


@contextmanager
def counted() -> Iterator[None]:
    """Enable the kernel's statistics, as kernel.bpf_stats_enabled does, without changing that.

    It ends with this process at the latest. OSError before Linux 5.8.
    """
    with owned(libbpf.call("bpf_enable_stats", _RUN_TIME)):
        yield


@contextmanager
def pinned(lab: Lab) -> Iterator[list[int]]:
    """The current programs of a lab's agents, by descriptor."""
    with ExitStack() as stack:
        found = []
        for node in lab.nodes:
            generation = newest_generation(node.bpffs)
            if generation is None:
                raise BenchError(f"{node.name}: nothing is pinned below {node.bpffs}")
            for path in generation.progs.iterdir():
                found.append(libbpf.obj_get(path))
                stack.callback(os.close, found[-1])
        yield found


@contextmanager
def clocks_at(pod: Member) -> Iterator[list[int]]:
    """Programs that return at once for every packet of a pod, one each way, by descriptor."""
    with ExitStack() as stack:
        found = []
        for hook in (AttachType.TCX_INGRESS, AttachType.TCX_EGRESS):
            found.append(stack.enter_context(owned(nothing.load(ProgType.SCHED_CLS))))
            with pod.entered():
                link = libbpf.link_create(found[-1], if_nametoindex(UPLINK), hook)
            stack.enter_context(owned(link))
        yield found


def measured(programs: Programs, clocks: Sequence[int], run: Callable[[], Load]) -> KernelTime:
    """What programs do during a run of connections; repeated if they were replaced meanwhile.

    Programs of one name, on several nodes, count together. BenchError if the clocks see no packets,
    or every run had its programs replaced.
    """
    for _ in range(_ATTEMPTS):
        with programs() as opened:
            found = _measured(opened, clocks, run)
            with programs() as opened_later:
                if _ids(opened) == _ids(opened_later):
                    return found
    raise BenchError(f"programs were replaced during each of {_ATTEMPTS} runs")


def _measured(
    programs: Sequence[int], clocks: Sequence[int], run: Callable[[], Load]
) -> KernelTime:
    before = [_total(each) for each in (*programs, *clocks)]
    load = run()
    after = [_total(each) for each in (*programs, *clocks)]
    totals = [
        Total(new.runs - old.runs, new.ns - old.ns) for old, new in zip(before, after, strict=True)
    ]
    by_name: dict[str, Total] = {}
    for program, (runs, ns) in zip(programs, totals, strict=False):
        if runs:
            name = libbpf.prog_info(program).name.decode()
            earlier = by_name.get(name, Total(0, 0))
            by_name[name] = Total(earlier.runs + runs, earlier.ns + ns)
    found = KernelTime(load.connections, by_name, totals[len(programs) :])
    if any(clock.runs < load.connections for clock in found.clocks):
        raise BenchError("no packets of these connections came past the clocks")
    return found


def net(found: Mapping[str, Sequence[KernelTime]]) -> dict[str, list[KernelTime]]:
    """All sides of a comparison without the clock's own time."""
    readings = (
        median(clock.ns / clock.runs for clock in clocks)
        for times in found.values()
        for clocks in zip(*(time.clocks for time in times), strict=True)
    )
    reading = min(readings)
    return {side: [time.less(reading) for time in times] for side, times in found.items()}


def _ids(programs: Sequence[int]) -> set[int]:
    """Kernel ids of the programs."""
    return {libbpf.prog_info(each).id for each in programs}


def _total(program: int) -> Total:
    facts = libbpf.prog_info(program)
    return Total(facts.run_cnt, facts.run_time_ns)

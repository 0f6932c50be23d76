# SPDX-License-Identifier: Apache-2.0
from contextlib import nullcontext

import pytest

from ebpflb.dataplane.kernel import libbpf
from tests.bench.harness import kernel_time
from tests.bench.harness.kernel_time import KernelTime, Total
from tests.bench.harness.load import Load
from tests.bench.harness.options import BenchError


def load(connections):
    return Load(1.0, 1.0, connections, 0, 0, 0, {})


class Kernel:
    """The account of programs by descriptor: name, runs, nanoseconds."""

    def __init__(self, monkeypatch, programs):
        self.programs = programs
        monkeypatch.setattr(libbpf, "prog_info", self.facts)

    def facts(self, program):
        name, runs, ns = self.programs[program]
        facts = {"id": program, "name": name, "run_cnt": runs, "run_time_ns": ns}
        return type("Info", (), facts)

    def run(self, changes, connections):
        for program, (runs, ns) in changes.items():
            name, before, ns_before = self.programs[program]
            self.programs[program] = (name, before + runs, ns_before + ns)
        return load(connections)


def test_programs_of_one_name_count_together_and_those_that_did_not_run_are_left_out(monkeypatch):
    kernel = Kernel(
        monkeypatch, {3: (b"a", 9, 9), 4: (b"a", 0, 0), 5: (b"b", 7, 7), 6: (b"c", 1, 1)}
    )
    changes = {3: (10, 1000), 4: (20, 3000), 6: (10, 300)}
    found = kernel_time.measured(
        lambda: nullcontext([3, 4, 5]), [6], lambda: kernel.run(changes, 10)
    )
    assert found == KernelTime(10, {"a": Total(30, 4000)}, [Total(10, 300)])


def test_connections_past_the_clocks_are_worthless(monkeypatch):
    kernel = Kernel(monkeypatch, {3: (b"a", 0, 0), 6: (b"c", 0, 0)})
    with pytest.raises(BenchError, match="past the clocks"):
        kernel_time.measured(lambda: nullcontext([3]), [6], lambda: kernel.run({6: (9, 300)}, 10))


def test_a_run_whose_programs_were_replaced_counts_for_nothing(monkeypatch):
    kernel = Kernel(monkeypatch, {3: (b"a", 0, 0), 4: (b"a", 0, 0), 6: (b"c", 0, 0)})
    in_force = iter([[3], [4], [4], [4]])
    found = kernel_time.measured(
        lambda: nullcontext(next(in_force)), [6], lambda: kernel.run({4: (10, 50), 6: (10, 9)}, 10)
    )
    assert found.programs == {"a": Total(10, 50)}


def test_programs_that_are_replaced_in_every_run_cannot_be_measured(monkeypatch):
    kernel = Kernel(monkeypatch, dict.fromkeys(range(20), (b"a", 0, 0)))
    numbers = iter(range(10, 20))
    with pytest.raises(BenchError, match="replaced during each of 5 runs"):
        kernel_time.measured(
            lambda: nullcontext([next(numbers)]), [6], lambda: kernel.run({6: (10, 9)}, 10)
        )


def test_the_least_clock_is_taken_off_every_run_of_both_sides():
    def taken(*clocks):
        return KernelTime(10, {"a": Total(20, 2000)}, [Total(10, 10 * ns) for ns in clocks])

    found = kernel_time.net(
        {"ours": [taken(40, 50), taken(30, 50), taken(41, 50)], "other": [taken(60, 45)]}
    )
    assert [time.ns for side in found.values() for time in side] == [120] * 4
    assert found["ours"][0].runs_of("a") == 2
    assert found["ours"][0].ns_of("b") == found["ours"][0].runs_of("b") == 0

# SPDX-License-Identifier: Apache-2.0
"""A program that does lookups on every core without a pause while a test writes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from ebpflb.dataplane.kernel.maps import BpfMap
from tests.bpf.harness.numbers import number
from tests.bpf.harness.programs import prog_test_run

SECONDS = 240.0
AT_ONCE = 20_000
FRAME = bytes(64)


@contextmanager
def readers(program: int) -> Iterator[None]:
    """One thread per core that does lookups without a pause."""
    stop = threading.Event()

    def read(core: int) -> None:
        os.sched_setaffinity(0, {core})
        while not stop.is_set():
            prog_test_run(program, FRAME, repeat=AT_ONCE)

    threads = [threading.Thread(target=read, args=(core,)) for core in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def write_until(is_enough: Callable[[int], bool], write: Callable[[int], None]) -> int:
    """Call `write` with 0, 1, 2... until the condition holds; returns the number of calls."""
    deadline = time.monotonic() + SECONDS
    for changes in count():
        if is_enough(changes) or time.monotonic() > deadline:
            return changes
        write(changes)
    raise AssertionError


def tallies(answers: BpfMap) -> tuple[int, int, int]:
    """The program's counters: three words for each CPU."""
    value = answers.lookup(bytes(4)) or b""
    words = [number(value[at : at + 8]) for at in range(0, len(value), 8)]
    return sum(words[0::3]), sum(words[1::3]), sum(words[2::3])

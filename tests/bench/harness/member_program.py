# SPDX-License-Identifier: Apache-2.0
"""Programs of the benches that run in a member of a lab, and print "ready" when they are."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebpflb.lab import Member
from tests.bench.harness.options import BenchError

Process = subprocess.Popen[str]

_ROOT = Path(__file__).parents[3]


@contextmanager
def program(member: Member, module: str, *arguments: str) -> Iterator[Process]:
    """Started in the member, and killed at the end; it may not be ready yet."""
    argv = [sys.executable, "-m", module, *arguments]
    with member.popen(argv, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def ready_program(member: Member, module: str, *arguments: str) -> Iterator[Process]:
    """The same, once it is ready. BenchError."""
    with program(member, module, *arguments) as process:
        wait_ready(process)
        yield process


def wait_ready(process: Process) -> None:
    """BenchError if it does not get ready."""
    if not process.stdout or process.stdout.readline() != "ready\n":
        raise BenchError(f"a program of the bench did not start: {process.args!r}")

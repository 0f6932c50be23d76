# SPDX-License-Identifier: Apache-2.0
"""How .ci/test shows the output of its processes, which are short programs here."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/test"
SECONDS = 120

# As pytest does: an interrupt is an end with a summary, and exit status 2.
PYTEST = """#!{python}
import pathlib, os, sys, time
name = "first" if "tests/e2e/rules" in sys.argv else "second"
print(name, "begins", flush=True)
try:
    pathlib.Path(name).write_text(str(os.getpid()))
    while not pathlib.Path("end").exists():
        time.sleep(0.01)
except KeyboardInterrupt:
    print(name, "is interrupted", flush=True)
    sys.exit(2)
print(name, "ends", flush=True)
if name == "second":
    print("again: second", flush=True)
sys.exit(0 if name == "first" else 1)
"""


class Run:
    """.ci/test in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        python = folder / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTEST.format(python=sys.executable))
        python.chmod(0o755)
        (folder / ".ci").mkdir()
        (folder / "Makefile").write_text("coverage:\n\t@echo units\n")
        script = shutil.copy(SCRIPT, folder / ".ci/test")
        self.process = subprocess.Popen(
            [script, "host"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def pid(self, name: str) -> int:
        """Of `first` or `second`, once it runs."""
        path, deadline = self._folder / name, time.monotonic() + SECONDS
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return int(path.read_text())

    def wait(self) -> tuple[int, list[str]]:
        """Exit status and lines."""
        output, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output.splitlines()

    def end(self) -> None:
        """Both come to their end."""
        (self._folder / "end").touch()


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    made.pid("first")
    made.pid("second")
    yield made
    made.end()
    made.process.communicate()


def of(number, lines):
    """What one of the processes printed."""
    return [line.removeprefix(f"{number}: ") for line in lines if line.startswith(f"{number}: ")]


def test_lines_are_shown_as_they_come_with_the_number_of_their_process(run):
    begun = sorted(run.process.stdout.readline() for _ in range(3))
    assert begun == ["1: first begins\n", "2: second begins\n", "2: units\n"]
    run.end()
    status, lines = run.wait()
    assert status == 1
    assert sorted(lines[:-2]) == ["1: first ends", "2: again: second", "2: second ends"]


def test_the_last_lines_say_what_failed_and_how_to_run_it_again(run):
    run.end()
    _, lines = run.wait()
    assert lines[-2:] == ["process 2: pytest ended with status 1", "again: second"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_both_and_shows_their_last_words(run, number):
    """SIGINT comes from a terminal, to the group; SIGTERM to whom it is sent."""
    if number == signal.SIGINT:
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    status, lines = run.wait()
    assert status == 128 + number
    assert of(1, lines) == ["first begins", "first is interrupted"]
    assert of(2, lines) == ["units", "second begins", "second is interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_goes_on_when_the_second_is_interrupted(run, number):
    os.kill(run.pid("second"), number)
    run.end()
    status, lines = run.wait()
    assert status in (2, 128 + number)
    assert of(1, lines) == ["first begins", "first ends"]

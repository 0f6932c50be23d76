# SPDX-License-Identifier: Apache-2.0
"""What .ci/test shows of its processes, whose place short programs take here."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/test"
SECONDS = 20

# As pytest does: an interrupt is an end with a summary, and exit status 2.
PYTEST = """#!{python}
import os, pathlib, sys, time
is_lab = sys.argv[3] == "tests/e2e"
print("lab begins" if is_lab else "others begin", flush=True)
pathlib.Path("lab" if is_lab else "others").write_text(str(os.getpid()))
try:
    while not pathlib.Path("end").exists():
        time.sleep(0.01)
except KeyboardInterrupt:
    print("lab interrupted" if is_lab else "others interrupted", flush=True)
    sys.exit(2)
print("lab ends" if is_lab else "others end", flush=True)
sys.exit(0 if is_lab else 1)
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
            [script], stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def pid(self, name: str) -> int:
        """Of `lab` or `others`, once it runs."""
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
    made.pid("lab")
    made.pid("others")
    yield made
    made.end()
    made.process.communicate()


def test_the_lab_is_shown_when_the_others_are_at_their_end(run):
    run.end()
    assert run.wait() == (1, ["units", "others begin", "others end", "lab begins", "lab ends"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_the_lab_said_is_shown_when_all_is_interrupted(run, number):
    """SIGINT comes from a terminal, to the group; SIGTERM to whom it is sent."""
    if number == signal.SIGINT:
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    status, lines = run.wait()
    assert status == 128 + number
    assert lines[-4:] == ["others begin", "others interrupted", "lab begins", "lab interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_lab_goes_on_when_the_others_are_interrupted(run, number):
    os.kill(run.pid("others"), number)
    run.end()
    status, lines = run.wait()
    assert status in (2, 128 + number)
    assert lines[-2:] == ["lab begins", "lab ends"]

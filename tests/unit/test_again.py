# SPDX-License-Identifier: Apache-2.0
"""The line about a failure runs exactly what failed again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = r"""
import os, pytest

@pytest.mark.parametrize("what", ["$HOME 'a' \"b\" [c]", "d"])
def test_it(what):
    assert what == "d", "not the one"

@pytest.fixture
def broken():
    raise OSError(f"order {os.environ['PYTHONHASHSEED']}\nand more")

def test_more(broken):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_x.py").write_text(TESTS)
    return tmp_path


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """In a shell, with the plugin but without the hashes' seed of this process."""
    given = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "-p tests.again"}
    given.pop("PYTHONHASHSEED", None)
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=given, capture_output=True, text=True, check=False
    )


def again(output: str) -> list[str]:
    """The lines about failures."""
    lines = output.splitlines()
    return [line.removeprefix("again: ") for line in lines if line.startswith("again: ")]


def test_each_failure_is_run_again_by_its_line(folder: Path):
    ran = run(folder, f"PYTHONHASHSEED=7 {sys.executable} -m pytest -q")
    setup, call = again(ran.stdout)
    assert setup.endswith("test_x.py::test_more  # OSError: order 7")
    assert call.endswith("]'  # AssertionError: not the one")
    for line in (setup, call):
        repeated = run(folder, line)
        assert again(repeated.stdout) == [line]
        assert "1 failed" in repeated.stdout or "1 error" in repeated.stdout
        assert "passed" not in repeated.stdout


def test_of_many_failures_some_are_shown(folder: Path):
    more = "def test_{}():\n    assert False\n"
    (folder / "test_x.py").write_text("".join(map(more.format, range(25))))
    output = run(folder, f"{sys.executable} -m pytest -q").stdout
    assert len(again(output)) == 20
    assert "\n5 more failed\n" in output


def test_a_file_that_is_no_program_is_named(folder: Path):
    (folder / "test_x.py").write_text("(")
    (line,) = again(run(folder, f"{sys.executable} -m pytest -q").stdout)
    assert line.endswith("-m pytest test_x.py  # SyntaxError: '(' was never closed")

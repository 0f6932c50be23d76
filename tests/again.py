# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that ends the run with a command for each failure, which repeats just that test.

`.ci/test` shows those of its processes together at its end.
"""

import os
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.mode import Mode

# Environment variables that may affect a test.
_OPTIONS = ("--cni", "--hypothesis-profile", "--hypothesis-seed")
_VARIABLES = ("PYTHONHASHSEED", *Mode().environment)
# If more fail, they have a common cause.
_MOST = 20
_LONGEST_REASON = 120


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """After everything but the count, for each test or file that failed."""
    yield
    lines = list(dict.fromkeys(_lines(terminalreporter, config)))
    for line in lines[:_MOST]:
        terminalreporter.write_line(f"again: {line}")
    if lines[_MOST:]:
        terminalreporter.write_line(f"{len(lines) - _MOST} more failed")


def command(nodeid: str, config: pytest.Config) -> str:
    """The shell command that runs it again in the root of the tree."""
    own = Path(sys.executable)
    root = config.rootpath
    python = own.relative_to(root) if own.is_relative_to(root) else own
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)]
    given = {name: config.getoption(name, None) for name in _OPTIONS}
    options = [f"{name}={value}" for name, value in given.items() if value]
    return shlex.join([*variables, str(python), "-m", "pytest", *options, nodeid])


def _lines(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[str]:
    for kind in ("error", "failed"):
        for report in terminalreporter.stats.get(kind, ()):
            yield f"{command(report.nodeid, config)}  # {_reason(report)[:_LONGEST_REASON]}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """In one line; for a file that cannot be imported, the last line."""
    if crash := getattr(report.longrepr, "reprcrash", None):
        return str(crash.message).partition("\n")[0]
    return str(report.longrepr).rstrip().rpartition("\n")[2].removeprefix("E").strip()

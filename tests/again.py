# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: at the end there is a line for what failed, which runs just that again.

`.ci/test` shows those of its processes together at its end.
"""

import os
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.mode import Mode

# What a test may depend on besides itself.
_OPTIONS = ("--cni", "--hypothesis-profile", "--hypothesis-seed")
_VARIABLES = ("PYTHONHASHSEED", *Mode().environment)
# If more fail, it is for one reason.
_MOST = 20
_LONGEST_REASON = 120


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Below everything but the count, and for each test or file that failed."""
    yield
    lines = list(dict.fromkeys(_lines(terminalreporter, config)))
    for line in lines[:_MOST]:
        terminalreporter.write_line(f"again: {line}")
    if lines[_MOST:]:
        terminalreporter.write_line(f"{len(lines) - _MOST} more failed")


def command(nodeid: str, config: pytest.Config) -> str:
    """What runs it again in a shell, in the root of the tree."""
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
    """In one line; of a file that cannot be imported it is the last one."""
    if crash := getattr(report.longrepr, "reprcrash", None):
        return str(crash.message).partition("\n")[0]
    return str(report.longrepr).rstrip().rpartition("\n")[2].removeprefix("E").strip()

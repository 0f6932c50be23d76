# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: a run of all tests that the rules name must leave conformance.md true.

A run of some of them does nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conformance.document import render
from tests.conformance.rules import RULES, Group, exists, faults, named_tests, read_groups

DOCUMENT = Path("docs/development/conformance.md")
RENEW = "--renew-conformance"

_LACKING = "kernel lacks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """With the option the document is written, without it is compared."""
    parser.addoption(RENEW, action="store_true", help=f"write {DOCUMENT} if the rules are proved")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, where there are rules."""
    if (config.rootpath / RULES).is_dir() and not config.option.collectonly:
        config.pluginmanager.register(_Conformance(config), "conformance")


class _Conformance:
    """What became of the tests that the rules name."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._renews = config.getoption(RENEW)
        self._groups = _read(self._root)
        self._ran: set[str] = set()
        self._not_passed: set[str] = set()
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a test with parameters every case must pass."""
        test = _without_parameters(report.nodeid)
        if report.when == "call" or report.skipped:
            self._ran.add(test)
        if not report.passed and not _is_lacking(report):
            self._not_passed.add(test)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run where rules are unproved or the document is stale."""
        if not self._is_whole(session):
            return
        unproved = faults(self._root, self._groups) + list(self._unproved())
        self._lines = unproved or self._document_faults()
        if self._lines and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line for each fault."""
        for line in self._lines:
            terminalreporter.write_line(f"conformance: {line}", red=True)

    def _is_whole(self, session: pytest.Session) -> bool:
        selected = {_without_parameters(item.nodeid) for item in session.items}
        named = [test for test in named_tests(self._groups) if exists(self._root, test)]
        return bool(named) and selected.issuperset(named)

    def _unproved(self) -> Iterator[str]:
        for rule in (rule for group in self._groups for rule in group.rules):
            for test in (each for each in rule.tests if exists(self._root, each)):
                if test not in self._ran:
                    yield f"{rule.id}: {test} did not run"
                elif test in self._not_passed:
                    yield f"{rule.id}: {test} has not passed"

    def _document_faults(self) -> list[str]:
        path, text = self._root / DOCUMENT, render(self._groups)
        if self._renews:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        is_true = path.is_file() and path.read_text() == text
        return [] if is_true else [f"{DOCUMENT} is stale: make conformance renews it"]


def _read(root: Path) -> tuple[Group, ...]:
    try:
        return read_groups(root)
    except (ValueError, yaml.YAMLError) as error:
        raise pytest.UsageError(f"conformance: {error}") from error


def _without_parameters(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def _is_lacking(report: pytest.TestReport) -> bool:
    return report.skipped and isinstance(report.longrepr, tuple) and _LACKING in report.longrepr[2]

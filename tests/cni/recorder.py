# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: a run of all tests of a row updates docs/compatibility.md."""

import datetime
import os
from collections import defaultdict

import pytest

from tests.cluster.harness.binaries import KUBERNETES_VERSION
from tests.cni.document import FAILED, LACKING, PASSED, Record, columns, render
from tests.cni.row import rows

DOCUMENT = "docs/compatibility.md"


class Recorder:
    """The results of the tests. A run of some of them does not change the record."""

    def __init__(self, config: pytest.Config) -> None:
        self._document = config.rootpath / DOCUMENT
        self._row = rows()[config.getoption("--cni")]
        self._passed: dict[str, list[bool]] = defaultdict(list)
        self._is_whole = not (config.option.keyword or config.option.markexpr)
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a test with parameters every case must pass."""
        if report.when == "call" or report.failed:
            test = report.nodeid.rpartition("::")[2].partition("[")[0]
            self._passed[test].append(report.passed)

    def pytest_sessionfinish(self) -> None:
        """Write the record and the document, if every test was run."""
        wanted = set(columns()) - set(self._row.lacks)
        if not self._is_whole or set(self._passed) != wanted:
            self._said = f"{DOCUMENT} stays as it is, because not every test was run"
            return
        results = {test: self._result(test) for test in columns()}
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        kernel = os.uname().release.partition("-")[0]
        made = Record(day, kernel, KUBERNETES_VERSION, self._row.version, results)
        made.write(self._row.name)
        self._document.write_text(render())
        self._said = f"{DOCUMENT} tells of this run"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report what happened to the record."""
        terminalreporter.line(self._said)

    def _result(self, test: str) -> str:
        if test in self._row.lacks:
            return LACKING
        return PASSED if all(self._passed[test]) else FAILED

# SPDX-License-Identifier: Apache-2.0
"""For every test: markers by folder, root where it is needed, and skips that cannot hide."""

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.skips import KernelLacks

TESTS = Path(__file__).parent
MARKERS = {"bpf": ("bpf",), "e2e": ("bpf", "e2e")}

pytest_plugins = ["tests.again", "tests.conformance.plugin"]

# Without a database: a leftover cannot change a result. Without deadlines: the machine may be busy.
ANYWHERE = hypothesis.settings(
    deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# The same examples in each run, and examples from a seed.
hypothesis.settings.register_profile("ebpflb", ANYWHERE, derandomize=True)
# In CI, hypothesis would otherwise draw the same for every seed.
hypothesis.settings.register_profile("fuzz", ANYWHERE, derandomize=False, print_blob=True)
hypothesis.settings.load_profile("ebpflb")


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Restores the process's logging after tests of the logging setup."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:], root.level, logging.raiseExceptions = before


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a folder with what the folder is for."""
    for folder, markers in MARKERS.items():
        if item.path.is_relative_to(TESTS / folder):
            for marker in markers:
                item.add_marker(marker)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before anything runs: tests that need root have it, and leftovers of killed runs are
    removed.
    """
    needing_root = [item for item in session.items if item.get_closest_marker("bpf")]
    if not needing_root or session.config.option.collectonly:
        return
    if os.geteuid() != 0:
        raise pytest.UsageError(f"{len(needing_root)} tests need root; without it: -m 'not bpf'")
    from tests.leftovers import begin_run

    begin_run(session.config.get_terminal_writer().line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure, unless the kernel lacks a feature."""
    report = yield
    _fail_hidden_skip(report, call)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for the skip of a whole module."""
    report = yield
    _fail_hidden_skip(report, getattr(report, "call", None))
    return report


def _fail_hidden_skip(
    report: pytest.TestReport | pytest.CollectReport, call: pytest.CallInfo[Any] | None
) -> None:
    excinfo = call.excinfo if call else None
    if not report.skipped or hasattr(report, "wasxfail") or excinfo is None:
        return
    if not isinstance(excinfo.value, KernelLacks):
        report.outcome = "failed"
        report.longrepr = f"skipped, which counts as a failure: {excinfo.value}"

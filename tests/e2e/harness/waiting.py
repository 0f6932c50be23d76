# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition instead of sleeping, and what is done meanwhile."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

import pytest

T = TypeVar("T")

_PAUSE = 0.02
# For a busy machine; usually it takes a moment.
PATIENCE = 60.0


def wait_until(condition: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    """Returns the first true value of `condition`; the test fails, naming `what`, after `timeout`
    s.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout} s: {what}; at last: {value!r}")
        time.sleep(_PAUSE)
    return value


def wait_until_equal(
    found: Callable[[], object], expected: object, timeout: float = PATIENCE
) -> None:
    """Return when `found` is as expected; the test fails after `timeout` s, with the difference."""
    deadline = time.monotonic() + timeout
    while (value := found()) != expected and time.monotonic() <= deadline:
        time.sleep(_PAUSE)
    assert value == expected, f"{value!r} instead of {expected!r}"


@contextmanager
def repeated(step: Callable[[], object]) -> Iterator[None]:
    """Take the step in a thread until the block ends, once at least. Its errors are raised here."""
    ended = Event()

    def work() -> None:
        step()
        while not ended.is_set():
            step()

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        try:
            yield
        finally:
            ended.set()
        working.result()

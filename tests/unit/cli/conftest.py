# SPDX-License-Identifier: Apache-2.0
"""A terminal as standard output."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture
def screen(monkeypatch):
    """Gives a context in which standard output is a terminal of so many columns.

    The context's value gives what was written there.
    """

    @contextmanager
    def opened(columns: int) -> Iterator[Callable[[], str]]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(theirs, "w") as stdout, os.fdopen(ours, "rb", buffering=0) as screen:
            monkeypatch.setattr("sys.stdout", stdout)
            monkeypatch.setattr("sys.__stdout__", stdout)
            monkeypatch.delenv("COLUMNS", raising=False)
            yield lambda: screen.read(1 << 20).decode()

    return opened

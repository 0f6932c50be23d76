# SPDX-License-Identifier: Apache-2.0
"""Threads must end with their test; a terminal as standard output."""

import fcntl
import os
import pty
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ebpflb.web.server import HttpServer
from tests.unit.mutual import Parties

# A surviving thread would affect the next test: its patches, its log, its environment.
SECONDS = 60


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        _join(thread)
        assert not thread.is_alive(), f"{thread.name} goes on"


@pytest.fixture(autouse=True)
def _interrupts_end_the_tests() -> Iterator[None]:
    """Not a command that a test has called."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def _join(thread: threading.Thread) -> None:
    while True:
        try:
            return thread.join(SECONDS)
        except RuntimeError:
            # Another thread is about to start it, for which nothing can wait.
            time.sleep(0.001)


class Screen:
    """What was written to a terminal, once that is closed."""

    def __init__(self, terminal: int) -> None:
        self.text = ""
        self._terminal = terminal
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def lines(self) -> list[str]:
        return self.text.replace("\r\n", "\n").splitlines()

    def close(self) -> None:
        self._reader.join()
        os.close(self._terminal)

    def _read(self) -> None:
        written = b""
        # An error when the other end is closed.
        with suppress(OSError):
            while piece := os.read(self._terminal, 1 << 12):
                written += piece
        self.text = written.decode()


@pytest.fixture
def screen(monkeypatch):
    """Gives a context in which standard output is a terminal of so many columns."""

    @contextmanager
    def opened(columns: int) -> Iterator[Screen]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        made = Screen(ours)
        with os.fdopen(theirs, "w") as stdout, monkeypatch.context() as patched:
            for name in ("stdout", "__stdout__"):
                patched.setattr(f"sys.{name}", stdout)
            patched.delenv("COLUMNS", raising=False)
            yield made
        made.close()

    return opened


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    made = HttpServer()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def parties(tmp_path_factory) -> Parties:
    """Certificates that no test changes."""
    return Parties(tmp_path_factory.mktemp("certificates"))

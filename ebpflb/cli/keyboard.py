# SPDX-License-Identifier: Apache-2.0
"""Single keys from a terminal, without waiting for Enter and without an echo."""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

Press = Callable[[float], str]


@contextlib.contextmanager
def keys() -> Iterator[Press]:
    """A function that waits so many seconds for a key: which one, or "" when the time is over.

    The terminal is as before at the end. Without one the time just passes.
    """
    if not sys.stdin.isatty():
        yield _pass
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: _press(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _press(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], max(seconds, 0))
    return os.read(terminal, 1).decode(errors="replace") if ready else ""


def _pass(seconds: float) -> str:
    select.select([], [], [], max(seconds, 0))
    return ""

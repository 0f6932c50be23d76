# SPDX-License-Identifier: Apache-2.0
"""One bench at a time on a machine: labs have fixed names, and two would disturb each other."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = Path("/run/ebpflb-bench.lock")


@contextmanager
def alone(say: Callable[[], None], path: Path = _LOCK) -> Iterator[None]:
    """Wait until no other process is inside; `say`: is called before waiting."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield

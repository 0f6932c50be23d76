# SPDX-License-Identifier: Apache-2.0
"""The open file descriptors of this process, to see what a test opened.

Compare sets, not numbers, because others may close theirs meanwhile.
"""

import gc
import os
from contextlib import suppress
from pathlib import Path

_OWN = Path("/proc/self/fd")


def descriptors() -> set[tuple[str, str]]:
    """Number and target of each, without those that other tests left to the garbage collector."""
    gc.collect()
    found = set()
    for number in os.listdir(_OWN):
        with suppress(FileNotFoundError):  # the one that lists
            found.add((number, os.readlink(_OWN / number)))
    return found

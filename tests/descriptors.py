# SPDX-License-Identifier: Apache-2.0
"""What this process has open, to see what a test opened.

Compare sets, not numbers, because others may close theirs meanwhile.
"""

import gc
import os
from contextlib import suppress
from pathlib import Path

_OWN = Path("/proc/self/fd")


def descriptors() -> set[tuple[str, str]]:
    """The number of each and what it is, without those that other tests left to the collector."""
    gc.collect()
    found = set()
    for number in os.listdir(_OWN):
        with suppress(FileNotFoundError):  # the one that lists
            found.add((number, os.readlink(_OWN / number)))
    return found

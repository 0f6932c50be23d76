# SPDX-License-Identifier: Apache-2.0
"""Where a measurement runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep the calling thread on the first of its CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

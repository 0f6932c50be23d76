# SPDX-License-Identifier: Apache-2.0
"""File descriptors that are closed in the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def owned(fd: int) -> Iterator[int]:
    """The descriptor, closed with the block."""
    try:
        yield fd
    finally:
        os.close(fd)

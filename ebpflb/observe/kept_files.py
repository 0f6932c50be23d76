# SPDX-License-Identifier: Apache-2.0
"""Files of what was observed, which only grow: what was written is whole whenever an agent is
killed.
"""

import gzip
import os
from collections.abc import Sequence

from ebpflb import own_files

KEPT_SECONDS = 24 * 3600.0
LEVEL = 1
"""Of gzip: the quickest."""


def append_lines(folder: int, name: str, lines: Sequence[bytes]) -> int:
    """As a gzip member, to a file of that directory; returns its size. OSError: it is as before."""
    member = gzip.compress(b"".join(lines), LEVEL)
    with own_files.appending(folder, name) as file:
        size = os.fstat(file).st_size
        own_files.append(file, size, member)
    return size + len(member)

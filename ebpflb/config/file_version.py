# SPDX-License-Identifier: Apache-2.0
"""Which content of a settings file was read."""

from pathlib import Path
from typing import NamedTuple


class FileVersion(NamedTuple):
    """A file, and the digest of the content that was read."""

    path: Path
    digest: bytes


def digest(content: bytes) -> bytes:
    from hashlib import sha256

    return sha256(content).digest()

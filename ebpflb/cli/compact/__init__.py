# SPDX-License-Identifier: Apache-2.0
"""Compact answers, for `kubectl ebpflb` alone: typed rows as JSON, compressed, in base64.

What should be the same on all nodes is encoded apart in each row, so that it is decoded once for
all nodes that agree.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Annotated, Any

import click
import msgspec

# No counter of the kernel's gets as far.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

_MOST_BYTES = 256 << 20

compact_option: Callable[[Any], Any] = click.option(
    "--compact", "is_compact", is_flag=True, hidden=True
)


def compact(answer: object) -> str:
    """One line of text."""
    return packed(msgspec.json.encode(answer))


def packed(content: bytes) -> str:
    return b64encode(zlib.compress(content, 1)).decode()


def from_compact(text: str) -> bytes:
    """The JSON. ValueError if it is none, or unreasonably long."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(b64decode(text.strip(), validate=True), _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacking.eof:
        raise ValueError("incomplete, or too long")
    return found

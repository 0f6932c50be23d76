# SPDX-License-Identifier: Apache-2.0
"""Compact answers, for the plugin and the relay: typed rows as JSON, compressed, in base64.

What should be the same on all nodes is encoded apart in each row, so that it is decoded once for
all nodes that agree.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Annotated, Protocol, TypeVar

import msgspec

# No counter of the kernel's gets as far.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

_MOST_BYTES = 256 << 20


class HasForm(Protocol):
    """form: JSON, the same on all nodes that agree."""

    @property
    def form(self) -> msgspec.Raw: ...


Row = TypeVar("Row", bound=HasForm)
Kept = TypeVar("Kept")


def by_form(
    rows: Iterable[Row], known: dict[bytes, Kept], keep: Callable[[bytes], Kept]
) -> list[tuple[Kept, Row]]:
    """Each row of a node with what is kept of its form.

    `known`: that of other nodes, by form; `keep` makes what is missing there.
    """
    found = {bytes(row.form): row for row in rows}
    for form in found.keys() - known.keys():
        known[form] = keep(form)
    return [(known[form], row) for form, row in found.items()]


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

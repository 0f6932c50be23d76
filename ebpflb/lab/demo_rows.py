# SPDX-License-Identifier: Apache-2.0
"""One row of the demo's table: what was tried, what must come of it, what did."""

from typing import NamedTuple


class Row(NamedTuple):
    """Right when what was seen is, word for word, what was expected."""

    what: str
    expected: str
    seen: str

    @property
    def is_right(self) -> bool:
        """Whether the row is as it should be."""
        return self.expected == self.seen

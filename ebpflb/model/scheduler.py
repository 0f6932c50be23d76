# SPDX-License-Identifier: Apache-2.0
"""How a backend is chosen for a new connection."""

from enum import StrEnum

# Of 100 backends one goes: 1.7 % of the flows of the others move. docs/decisions.md.
TABLE_SIZE = 10007


class Scheduler(StrEnum):
    """RANDOM: each backend equally likely. ROUND_ROBIN: one after the other, on each node.

    LEAST_CONNECTIONS: of two at random the one with fewer open connections of this node.
    SOURCE_HASH: the client's address decides. MAGLEV: the client's address and port and the
    frontend decide. All nodes choose the same backend for them.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"
    SOURCE_HASH = "source-hash"
    MAGLEV = "maglev"

    @property
    def has_table(self) -> bool:
        """Whether it looks up a hash in a table (maglev.py)."""
        return self in (Scheduler.SOURCE_HASH, Scheduler.MAGLEV)

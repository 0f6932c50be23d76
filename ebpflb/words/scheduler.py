# SPDX-License-Identifier: Apache-2.0
"""How a backend is chosen for a new connection."""

from enum import StrEnum

# If one of 100 backends goes, 1.7 % of the flows of the others move:
# docs/development/decisions/endpoints.md.
TABLE_SIZE = 10007


class Scheduler(StrEnum):
    """RANDOM: each backend equally likely. ROUND_ROBIN: one after the other, on each node.

    LEAST_CONNECTIONS: of two at random the one with fewer open connections from this node.
    SOURCE_HASH: by the client's address. MAGLEV: by the client's address and port and the frontend.
    For these two, all nodes choose the same backend. LOWEST_LATENCY: of two at random the one that
    answers this node faster, times its open connections. The order is that of enum lb_scheduler.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"
    SOURCE_HASH = "source-hash"
    MAGLEV = "maglev"
    LOWEST_LATENCY = "lowest-latency"

    @property
    def has_table(self) -> bool:
        """Whether it uses a lookup table (model/maglev.py)."""
        return self in (Scheduler.SOURCE_HASH, Scheduler.MAGLEV)

    @property
    def counts_open(self) -> bool:
        """Whether the open connections to its backends are counted."""
        return self in (Scheduler.LEAST_CONNECTIONS, Scheduler.LOWEST_LATENCY)

    @property
    def is_even(self) -> bool:
        """Whether clients that connect anew are spread by the weights, whoever they are."""
        return self not in (Scheduler.SOURCE_HASH, Scheduler.LOWEST_LATENCY)

    @property
    def measures_latency(self) -> bool:
        return self is Scheduler.LOWEST_LATENCY

# SPDX-License-Identifier: Apache-2.0
"""What each Service and its backends carry per second, and how evenly that is spread."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


class Balance(NamedTuple):
    """How connections spread: the largest share of one backend, and what an even share is.

    Both are None without connections.
    """

    largest: float | None = None
    even: float | None = None

    @property
    def ratio(self) -> float:
        """1 is even; 0 without connections."""
        return self.largest / self.even if self.largest and self.even else 0.0


@dataclass(frozen=True, slots=True)
class BackendRate:
    """One backend. Connections, failed and bytes are per second.

    share: of the Service's new connections in this address family; of the active ones if there were
    no new ones; None without any. standing: unwatched, watched, trial or ejected.
    """

    address: str
    port: int
    local: bool
    terminating: bool
    offered: bool
    connections: float
    active: int
    failed: float
    original_bytes: float
    reply_bytes: float
    share: float | None
    trouble: str
    standing: str


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """One Service port. All counts but active and endpoints are per second.

    largest_share: of the backend with the most connections in its address family. even_share: what
    each backend of that family would have. cross_node_share: to backends on other nodes. Shares are
    None without connections. endpoints: backends that take new connections.
    """

    namespace: str
    service: str
    port: str
    protocol: str
    connections: float
    active: int
    refused: float
    dropped: float
    failed: float
    retransmits: float
    original_bytes: float
    reply_bytes: float
    endpoints: int
    largest_share: float | None
    even_share: float | None
    cross_node_share: float | None
    troubles: tuple[str, ...]
    backends: tuple[BackendRate, ...]

    @property
    def lost(self) -> float:
        """Connections that failed for whatever reason, per second."""
        return self.refused + self.dropped + self.failed

    @property
    def imbalance(self) -> float:
        """How many times its even share the busiest backend has; 0 without connections."""
        return Balance(self.largest_share, self.even_share).ratio


def balance(connections: Collection[int], backends: int) -> Balance:
    """`connections` that each backend has; `backends`: how many take new ones."""
    every = sum(connections)
    if not every:
        return Balance()
    return Balance(max(connections) / every, 1 / backends if backends else None)

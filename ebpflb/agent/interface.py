# SPDX-License-Identifier: Apache-2.0
"""What the loop needs of a node: dataplane.py implements it, tests do so over maps in memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ebpflb.errors import EbpflbError, MapError
from ebpflb.model.address import Address, Family
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName

Desired = Mapping[ServiceName, Sequence[Frontend]]
Refused = Mapping[ServiceName, MapError]
Errors = Mapping[str, EbpflbError]

# For this long, what was replaced in the maps is not reused.
GRACE_SECONDS = 1.0


class ExpiryStep(NamedTuple):
    """The result of a step of expiry; `finished`: it came to the end of the tables."""

    deleted: int
    finished: bool


class EndedSockets(NamedTuple):
    """How many sockets were ended; `pending`: look again in a moment."""

    sockets: Mapping[Family, int]
    pending: bool


class Dataplane(Protocol):
    """Not for several threads.

    Methods raise MapError when a write failed, and other errors when a retry is of no use.
    """

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps and attach the hooks; until then, what was in force before stays.

        `keep_others`: Services of an earlier run that are not in `desired` stay. Returns the
        Services that do not fit and keep what they had.
        """
        ...

    def apply(self, changed: Desired) -> Refused:
        """Replace the frontends of these Services; a Service without any is gone."""
        ...

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Read the maps back and compare everything; other Services go, unless they are kept."""
        ...

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """As `resync()`, with larger maps: a new generation."""
        ...

    def follow_network(self, *, repair: bool) -> Errors:
        """Serve the present devices and addresses; returns the errors by hook, device or map.

        `repair`: check every hook, even if the network seems unchanged.
        """
        ...

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        """Set the node's addresses of the API, for the next `follow_network()`."""
        ...

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        """Drop traffic to addresses in these CIDRs that no Service has."""
        ...

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        """Wait in a thread until no program uses what was replaced, then call `ready` there."""
        ...

    def collect(self) -> None:
        """Free what was replaced some time ago; to be called soon after `ready` was."""
        ...

    def expire(self) -> ExpiryStep:
        """Look at some flows and delete the expired ones."""
        ...

    def take_ended_udp(self) -> bool:
        """Whether a UDP backend may have stopped serving since the last call."""
        ...

    def end_udp_sockets(self) -> EndedSockets:
        """End this node's connected UDP sockets whose backend has stopped serving."""
        ...

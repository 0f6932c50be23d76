# SPDX-License-Identifier: Apache-2.0
"""What the loop needs of a node: kernel.py does it, tests do it over maps in memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ebpflb.errors import EbpflbError, MapError
from ebpflb.model.address import Address, Family
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName

Desired = Mapping[ServiceName, Sequence[Frontend]]
Refused = Mapping[ServiceName, MapError]
Errors = Mapping[str, EbpflbError]

# For so long what was replaced is left alone.
GRACE_SECONDS = 1.0


class Expired(NamedTuple):
    """What a step of expiry did; `finished`: it came to the end of the tables."""

    deleted: int
    finished: bool


class EndedSockets(NamedTuple):
    """How many were ended; `pending`: look again in a moment."""

    sockets: Mapping[Family, int]
    pending: bool


class Dataplane(Protocol):
    """What the loop needs of a node. Not for several threads.

    Methods raise MapError where a write failed, and other errors where repeating is of no use.
    """

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Bring maps and hooks in force; what was in force before stays so until then.

        `keep_others`: Services of an earlier run that are not in `desired` stay. Returns the
        Services that do not fit and keep what they had.
        """
        ...

    def apply(self, changed: Desired) -> Refused:
        """Give these Services these frontends; none means that a Service is gone."""
        ...

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Read the maps back and compare everything; other Services go, unless they are kept."""
        ...

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """As `resync()`, with more room in the maps: a new generation."""
        ...

    def follow_network(self, *, repair: bool) -> Errors:
        """Serve the devices and addresses there are now; what could not be served.

        `repair`: look at every hook, also if nothing seems to have changed.
        """
        ...

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        """Take note of what the API calls the node's addresses, for `follow_network()`."""
        ...

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        """Have what leaves for addresses in these CIDRs that no Service has dropped."""
        ...

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        """Wait for the kernel in a thread, then call `ready` from there."""
        ...

    def collect(self) -> None:
        """Free what was replaced some time ago; to be called soon after `ready` was."""
        ...

    def expire(self) -> Expired:
        """Look at some flows and delete those whose time is over."""
        ...

    def take_ended_udp(self) -> bool:
        """Whether, since the last call, a UDP backend may have stopped serving."""
        ...

    def end_udp_sockets(self) -> EndedSockets:
        """End connected UDP sockets of this node whose backend has stopped serving."""
        ...

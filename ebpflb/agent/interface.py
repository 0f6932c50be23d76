# SPDX-License-Identifier: Apache-2.0
"""What the loop needs of a node: dataplane.py implements it, tests do so over maps in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from ebpflb.errors import EbpflbError, MapError
from ebpflb.model.address import Address, Family
from ebpflb.model.dsr import TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName, ServicePortName

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

    def lacks_room_for_flows(self) -> bool:
        """Whether a table of new flows is half full and could be larger."""
        ...

    def grow_flows(self, desired: Desired, *, keep_others: bool) -> Refused:
        """As `grow()`, with larger tables of new flows instead; no flow is lost."""
        ...

    def follow_network(self, *, repair: bool) -> Errors:
        """Serve the present devices and addresses; returns the errors by hook, device or map.

        `repair`: check every hook, even if the network seems unchanged.
        """
        ...

    def set_tc_only_pods(self, addresses: Set[Address]) -> None:
        """Set the pods that have opted out of socket LB, for the next `follow_rules()`."""
        ...

    def follow_tunnels(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        """Send to these pods in tunnels, and take tunnels from these nodes, from now on.

        Also before the start. `keep_others`: elements of an earlier run that are in no change stay.
        `compare`: look at all that the maps hold.
        """
        ...

    def ask_peer(self, question: PeerQuestion) -> str:
        """Ask a node whether it takes part in DSR, without waiting.

        Returns what prevents that, or nothing.
        """
        ...

    def take_answers(self) -> Iterable[tuple[Address, bytes]]:
        """What has come at the sockets of questions: from whom, and with which nonce."""
        ...

    def follow_rules(self) -> None:
        """Follow what others write into netfilter, which tells nobody.

        The sockets of pods that redirect their own traffic, or have opted out, are left alone. The
        kernel routes masqueraded packets where policies must see them.
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

    def read_failures(self, also: Iterable[ServicePortName]) -> FailureCounts:
        """Failed connections in a row of endpoints that have any, and of all of these ports."""
        ...

    def take_ended_udp(self) -> bool:
        """Whether a UDP backend may have stopped serving since the last call."""
        ...

    def end_udp_sockets(self) -> EndedSockets:
        """End this node's connected UDP sockets whose backend has stopped serving."""
        ...

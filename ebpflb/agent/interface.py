# SPDX-License-Identifier: Apache-2.0
"""What the loop needs of a node: dataplane/node.py, and in tests maps in memory."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ebpflb.errors import EbpflbError, MapError
from ebpflb.model.address import Address, Family
from ebpflb.model.dsr import TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.ending.endings import Ending, HeldConnection
from ebpflb.model.plan import Frontend
from ebpflb.model.pod import PodSockets
from ebpflb.model.service import ServiceName, ServicePortName

Desired = Mapping[ServiceName, Sequence[Frontend]]
Refused = Mapping[ServiceName, MapError]
Errors = Mapping[str, EbpflbError]

# How long replaced entries in the maps are not reused.
GRACE_SECONDS = 1.0


class ExpiryStep(NamedTuple):
    """The result of an expiry step; `finished`: it reached the end of the tables."""

    deleted: int
    finished: bool


class EndedSockets(NamedTuple):
    """How many sockets were closed; `pending`: look again soon."""

    sockets: Mapping[Family, int]
    pending: bool


class Dataplane(Protocol):
    """Not thread-safe.

    Methods raise MapError if a write failed, and other errors if a retry is pointless.
    """

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps and attach the hooks; until then, what was in force before stays.

        `keep_others`: Services of an earlier run that are not in `desired` stay. Returns the
        Services that do not fit, which keep their old frontends.
        """
        ...

    def apply(self, changed: Desired) -> Refused:
        """Replace the frontends of these Services; a Service without any is removed."""
        ...

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Read the maps back and compare everything; removes other Services unless kept."""
        ...

    def compare(self) -> Iterator[str]:
        """Compare the maps with what was written, a part at each step: the map that differs, or "".

        It need not be ended; `resync()`, `grow()` and `grow_flows()` put an end to it.
        """
        ...

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Like `resync()`, with larger maps: a new generation."""
        ...

    def lacks_room_for_flows(self) -> bool:
        """Whether a table of new flows is half full and could be larger."""
        ...

    def grow_flows(self, desired: Desired, *, keep_others: bool) -> Refused:
        """Like `grow()`, but for the tables of new flows; no flow is lost."""
        ...

    def follow_network(self, *, repair: bool) -> Errors:
        """Serve the current devices and addresses; returns the errors by hook, device or map.

        `repair`: check every hook, even if the network seems unchanged.
        """
        ...

    def has_lost_pins(self) -> bool:
        """Whether somebody has removed pins; a repair pins everything again."""
        ...

    def set_pods(self, pods: PodSockets) -> None:
        """Set what is known of this node's pods, for the start and the next `follow_rules()`."""
        ...

    def follow_tunnels(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        """Use tunnels to these pods, and accept tunnels from these nodes, from now on.

        May be called before the start. `keep_others`: entries of an earlier run that are in no
        change stay. `compare`: compare the full contents of the maps.
        """
        ...

    def follow_keys(self) -> None:
        """Use the keys of tunnels that are in their file now."""
        ...

    def ask_peer(self, question: PeerQuestion) -> str:
        """Ask a node whether it takes part in DSR, without waiting.

        Returns what prevents it, or "".
        """
        ...

    def take_answers(self) -> Iterable[tuple[Address, bytes]]:
        """The answers received so far: source address and nonce."""
        ...

    def follow_rules(self) -> None:
        """Re-read the netfilter rules of others, because their changes cause no events.

        Leaves the sockets of pods alone that redirect their own traffic or have opted out. Lets the
        kernel route masqueraded packets where network policies must see them.
        """
        ...

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        """Set the node's addresses from the API, for the next `follow_network()`."""
        ...

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        """Drop traffic to addresses in these CIDRs that belong to no Service.

        Until then those of an earlier run are in force.
        """
        ...

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        """Wait in a thread until no program uses the replaced objects, then call `ready` there."""
        ...

    def collect(self) -> None:
        """Free objects replaced some time ago; to be called soon after `ready` was."""
        ...

    def expire(self) -> ExpiryStep:
        """Look at some flows and delete those that have expired."""
        ...

    def read_failures(self, also: Iterable[ServicePortName]) -> FailureCounts:
        """Consecutive failures of endpoints that have any, and of all endpoints of these ports."""
        ...

    def held_connections(
        self, ports: Collection[ServicePortName]
    ) -> Mapping[ServicePortName, Sequence[HeldConnection]]:
        """The established TCP connections of these ports that have a socket on this node.

        ProbeError if the sockets could not be listed.
        """
        ...

    def end_connections(self, wanted: Collection[Ending]) -> list[Ending]:
        """End those that are still idle, and return them. ProbeError as above."""

    def read_open(self, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
        """The open connections of these ports, as the programs count them."""
        ...

    def take_ended_udp(self) -> bool:
        """Whether a UDP backend may have stopped serving since the last call."""
        ...

    def end_udp_sockets(self) -> EndedSockets:
        """Close this node's connected UDP sockets whose backend has stopped serving."""
        ...

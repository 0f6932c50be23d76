# SPDX-License-Identifier: Apache-2.0
"""The flows in the maps of a generation: their room, when they end, what is reserved for them."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from ebpflb.agent.dataplane.served_network import is_beside
from ebpflb.agent.interface import ExpiryStep
from ebpflb.config.settings import Settings
from ebpflb.dataplane.flows.claimed_ports import ClaimedPorts
from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.flows.flow_filter import FilterMarks
from ebpflb.dataplane.flows.held_connections import HeldConnections
from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.flows.stale_sockets import StaleSockets
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import MapSet, used
from ebpflb.dataplane.layout.capacity import FlowRoom, flow_room
from ebpflb.dataplane.services.addresses import Referred
from ebpflb.dataplane.services.sync import Moving, Sync
from ebpflb.model.address import Address

# Flows that one expiry step looks at; a change may have to wait some milliseconds for it.
EXPIRY_BUDGET = 2048
# The tables that can be replaced by larger ones, by their field of Sizes.
_GROWING: Mapping[str, str] = {
    "ct_short": "lb_ct_short",
    "ct_udp": "lb_ct_udp",
    "ct_dsr": "lb_ct_dsr",
}


class FlowTables:
    """For the loop. `addresses`, in its methods: those of the node."""

    def __init__(
        self,
        maps: MapSet,
        sync: Sync,
        settings: Settings,
        on_expired: Callable[[Sequence[bytes]], None] | None,
    ) -> None:
        """`on_expired` gets the records of expired flows."""
        self.stale_sockets = StaleSockets(maps)
        self.held = HeldConnections(maps)
        # Whether addresses or ports may have become unused since the last expiry pass began.
        self.may_forget = True
        self._sync = sync
        self._expiry = Expiry(maps, budget=EXPIRY_BUDGET, tell=on_expired)
        self._flow_filter = FilterMarks(maps, EXPIRY_BUDGET)
        self._reservations = Reservations(maps, settings.service_node_port_range)
        self._claims = ClaimedPorts(maps)
        self._is_beside = is_beside(settings)
        self._is_expiring = False

    def renew_reservations(self, addresses: Collection[Address]) -> None:
        """Reserve the source ports that sockets have at these addresses. MapError."""
        self._reservations.renew(addresses)

    @contextmanager
    def moving(self, moving: Moving) -> Iterator[None]:
        """Around a write by which Services come from another proxy, or leave for one. MapError."""
        if moving.leaving:
            self._claims.claim(moving.leaving.__contains__)
        yield
        if moving.leaving:
            self._claims.claim(self._sync.is_left)

    def step(
        self, addresses: Collection[Address], *, is_serving: bool, is_complete: bool
    ) -> ExpiryStep:
        """The next part of an expiry pass. MapError.

        is_serving: all cgroup hooks have the programs. is_complete: so have all others.
        """
        if (
            self._reservations.step(addresses)
            or (self._is_beside and self._claims.step(self._sync.is_left))
            or (is_complete and self._flow_filter.step())
        ):
            return ExpiryStep(0, finished=False)
        idle: Set[Referred] = frozenset()
        # Before it serves, flows may be in the tables of another generation.
        if not self._is_expiring and self.may_forget and is_serving:
            idle, self.may_forget = self._sync.idle(), False
        expired = self._expiry.step(idle)
        self._is_expiring = expired.unused is None
        self._sync.forget(expired.unused or frozenset())
        return ExpiryStep(expired.deleted, not self._is_expiring)


def room_for_flows(settings: Settings) -> FlowRoom:
    """Computed as kube-proxy computes nf_conntrack_max, within the node's memory."""
    scaled = settings.conntrack_max_per_core * (os.cpu_count() or 1)
    wanted = max(scaled, settings.conntrack_min)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    has_dsr = settings.dsr != "off"
    return flow_room(wanted, memory, libbpf.possible_cpus(), has_dsr=has_dsr)


def crowded_tables(maps: MapSet, most: int) -> frozenset[str]:
    """The tables, as fields of Sizes, that are half full and may grow. MapError."""
    return frozenset(
        size
        for size, name in _GROWING.items()
        if maps[name].max_entries < most and used(maps[name]) > maps[name].max_entries // 2
    )

# SPDX-License-Identifier: Apache-2.0
"""The generation in use: its maps and what writes them, and its programs at the hooks."""

from collections.abc import Callable, Mapping, Sequence
from errno import E2BIG

from ebpflb.agent.dataplane.flow_tables import FlowTables
from ebpflb.agent.dataplane.served_network import ServedNetwork, is_beside
from ebpflb.agent.dataplane.tunnels import NodeTunnels
from ebpflb.agent.interface import GRACE_SECONDS, Desired, Errors, ExpiryStep, Refused
from ebpflb.agent.status import log_changes
from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.attach.hooks import Hooks
from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import EbpflbError, MapError


class ActiveGeneration:
    """For the loop."""

    def __init__(
        self,
        generation: Generation,
        maps: MapSet,
        hooks: Hooks,
        settings: Settings,
        on_expired: Callable[[Sequence[bytes]], None] | None,
        tunnels: NodeTunnels,
    ) -> None:
        self.generation = generation
        self.maps, self.hooks = maps, hooks
        self.sync = Sync(maps, grace=GRACE_SECONDS, epoch=generation.epoch)
        self.network = ServedNetwork(maps, hooks, settings, tunnels)
        self.flows = FlowTables(maps, self.sync, settings, on_expired)
        # What could not be served when the network was served last.
        self.errors: Errors = {}
        # Whether its programs have been attached to all cgroup hooks.
        self.is_serving = False
        self._is_beside = is_beside(settings)

    def write(self, desired: Desired, *, keep_others: bool) -> Refused:
        self.flows.may_forget = True
        write = self.sync.apply if keep_others else self.sync.resync
        if not self._is_beside:
            return write(desired)
        moving = self.sync.moving(desired)
        if moving.comes and self.is_serving:
            self.flows.renew_reservations(self.network.state.node_addresses)
        with self.flows.moving(moving):
            return write(desired)

    def serve(self, network: NetworkState, service_ranges: Sequence[str] | None) -> bool:
        """Bring settings, addresses and hooks in line with the network; sets `errors`.

        `service_ranges`: None as long as they are not known, to keep those in the maps.

        Returns true when the programs are attached to all cgroup hooks for the first time.
        """
        xdp = self.network.prepare(network)
        if service_ranges is not None:
            write_service_nets(self.maps["lb_service_nets"], service_ranges)
        errors = self._set_node_addresses(network)
        applied = self.hooks.apply(network, xdp)
        self.network.finish(network)
        log_changes(applied.changes)
        self.errors = {**errors, **applied.errors}
        if self.is_serving or CGROUP_HOOKS.keys() & applied.errors:
            return False
        self.is_serving = True
        return True

    def _set_node_addresses(self, network: NetworkState) -> Mapping[str, EbpflbError]:
        if network.node_addresses == self.network.state.node_addresses:
            return {}
        self.flows.may_forget = True
        try:
            self.sync.set_node_addresses(network.node_addresses)
        except MapError as error:
            if error.errno != E2BIG:
                raise
            return {error.map_name: error}
        return {}

    def expire(self) -> ExpiryStep:
        """The next part of an expiry pass. MapError."""
        return self.flows.step(
            self.network.state.node_addresses,
            is_serving=self.is_serving,
            is_complete=self.is_serving and not self.errors,
        )

# SPDX-License-Identifier: Apache-2.0
"""All that the agent has in the kernel: a generation of maps and programs, and the hooks."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from errno import E2BIG
from itertools import chain
from pathlib import Path

from ebpflb.agent.interface import (
    GRACE_SECONDS,
    Desired,
    EndedSockets,
    Errors,
    ExpiryStep,
    Refused,
)
from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState, snapshot
from ebpflb.dataplane.attach.hooks import HookPlaces, Hooks
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, Change
from ebpflb.dataplane.attach.node_addresses import LOCALHOST, node_port_filter
from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.flows.settings import flow_records, write_service_nets, write_settings
from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.flows.stale_sockets import StaleSockets
from ebpflb.dataplane.flows.timeouts import timeouts
from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.capacity import MAPS, Sizes, sizes_for
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.load.loader import Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import ConfigError, EbpflbError, LoadError, MapError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family

_log = logging.getLogger("ebpflb.agent")

# Flows that one step looks at: a change may have to wait for it, for some milliseconds.
EXPIRY_BUDGET = 2048

_MOST_FLOWS = 1048576
_EPOCHS, _GENERATIONS_PER_EPOCH = 1 << 15, 1 << 16


class NodeDataplane:
    """The dataplane in the kernel, for the network namespace of the calling thread.

    It implements `interface.Dataplane`. What is attached keeps working throughout: a new
    generation is filled before the hooks move to it.
    """

    def __init__(self, settings: Settings) -> None:
        """Take the pins. ProbeError for what the machine lacks, PinError if they are taken.

        ConfigError if the cgroup root is not a cgroup v2 directory.
        """
        self._settings = settings
        self._probe = Probe()
        self._probe.require()
        _require_cgroup2(settings.cgroup_root)
        self._pins = Pins(settings.bpffs_root)
        self._loader = Loader(
            self._pins,
            has_set_retval=self._probe.supports(Feature.SET_RETVAL),
            has_coarse_clock=self._probe.supports(Feature.COARSE_CLOCK),
            has_sock_ops=self._probe.supports(Feature.SOCK_OPS),
        )
        # Before start(): gets the records of flows that expire.
        self.on_expired: Callable[[Sequence[bytes]], None] | None = None
        # Set by each write; whoever waits for it clears it.
        self.written = threading.Event()
        # How full the maps are that only the sync fills: (used, room for). For any thread.
        self.usage: Mapping[str, tuple[int, int]] = {}
        self._in_use: _ActiveGeneration | None = None
        self._node_ips: Mapping[Family, Address] = {}
        self._service_ranges: Sequence[str] = ()
        self._quiesced: float | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """The IP families that the kernel has."""
        return ("IPv4", "IPv6") if self._probe.supports(Feature.IPV6) else ("IPv4",)

    @property
    def lacks(self) -> Mapping[str, str]:
        """The features that the kernel does not have -> what is done without them."""
        return self._probe.lacks()

    @property
    def maps(self) -> MapSet | None:
        """The maps in use, None before the start. For any thread."""
        return self._in_use.maps if self._in_use else None

    @property
    def _active(self) -> "_ActiveGeneration":
        if self._in_use is None:
            raise RuntimeError("not started")
        return self._in_use

    def close(self) -> None:
        """Release the pins, which stay, as does what is attached."""
        if self._in_use:
            self._in_use.hooks.close()
        self._pins.close()

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        generation = self._loader.load(self._sizes_for(desired))
        refused = self._move(generation, desired, keep_others=keep_others)
        # For ports that sockets took while the hooks were being attached.
        self._active.renew_reservations(self._active.network)
        for hook in CGROUP_HOOKS:
            if hook in self._active.errors:
                raise self._active.errors[hook]
        return refused

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """LoadError when there is far more room already than `desired` could need."""
        sizes, needed = pinned_sizes(self._active.generation), self._sizes_for(desired)
        if sizes == sizes.at_least(needed.grown().grown()):
            raise LoadError(f"the maps are large enough already: {sizes}")
        sizes = sizes.grown().at_least(needed)
        _log.info("making room", extra=fields(frontends=sizes.frontends, slots=sizes.slots))
        return self._move(self._loader.load(sizes), desired, keep_others=keep_others)

    def apply(self, changed: Desired) -> Refused:
        return self._wrote(self._active.write(changed, keep_others=True))

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._active.sync.load()
        return self._wrote(self._active.write(desired, keep_others=keep_others))

    def follow_network(self, *, repair: bool) -> Errors:
        network = snapshot(self._settings, self._node_ips)
        if network != self._active.network or self._active.errors or repair:
            self._serve(network)
        return self._active.errors

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        self._node_ips = node_ips

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        self._service_ranges = ranges
        left_out = write_service_nets(self._active.maps["lb_service_nets"], ranges)
        if left_out:
            _log.warning("too many ServiceCIDRs, left out: %s", ", ".join(left_out))

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        def wait() -> None:
            began = time.monotonic()
            membarrier()
            self._quiesced = began
            ready()

        threading.Thread(target=wait, name="ebpflb-quiesce", daemon=True).start()

    def collect(self) -> None:
        self._active.sync.collect(self._quiesced)

    def expire(self) -> ExpiryStep:
        return self._active.expire()

    def take_ended_udp(self) -> bool:
        return self._active.sync.take_ended_udp()

    def end_udp_sockets(self) -> EndedSockets:
        if not self._probe.supports(Feature.SOCKET_DESTROY):
            return EndedSockets({}, pending=False)
        return EndedSockets(*self._active.stale_sockets.end())

    def _sizes_for(self, desired: Desired) -> Sizes:
        return sizes_for(chain.from_iterable(desired.values()), flows_wanted(self._settings))

    def _move(self, generation: Generation, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps of a generation, then have the hooks run its programs."""
        network = snapshot(self._settings, self._node_ips)
        active = _ActiveGeneration(
            generation, self._settings, self._probe, self._pins.links, self.on_expired
        )
        active.sync.load()
        refused = active.write(desired, keep_others=keep_others)
        if self._in_use:
            self._in_use.hooks.close()
        self._in_use = active
        # The first hook already gives out source ports.
        active.renew_reservations(network)
        self._serve(network)
        return self._wrote(refused)

    def _serve(self, network: NetworkState) -> None:
        if self._active.serve(network, self._service_ranges):
            self._loader.finish(self._active.generation)

    def _wrote(self, refused: Refused) -> Refused:
        self.usage = self._active.sync.usage()
        self.written.set()
        return refused


class _ActiveGeneration:
    """A generation's maps with all that writes them, and its programs at the hooks."""

    def __init__(
        self,
        generation: Generation,
        settings: Settings,
        probe: Probe,
        links: Path,
        on_expired: Callable[[Sequence[bytes]], None] | None,
    ) -> None:
        self.generation = generation
        self.maps = open_maps(generation.maps)
        self.sync = Sync(self.maps, grace=GRACE_SECONDS, epoch=_epoch(generation))
        places = HookPlaces(generation.progs, links, settings.cgroup_root)
        self.hooks = Hooks(places, self.maps, probe, settings.attach)
        self.stale_sockets = StaleSockets(self.maps)
        # The network as served last, and the errors of that.
        self.network = NetworkState({}, {}, {})
        self.errors: Errors = {}
        self._settings = settings
        self._expiry = Expiry(self.maps, budget=EXPIRY_BUDGET, tell=on_expired)
        self._reservations = Reservations(self.maps)
        self._is_serving = False
        self._is_expiring = False
        # Whether addresses may have become idle since the last pass of expiry began.
        self._may_forget = True

    def write(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._may_forget = True
        return self.sync.apply(desired) if keep_others else self.sync.resync(desired)

    def renew_reservations(self, network: NetworkState) -> None:
        self._reservations.renew(network.node_addresses)

    def serve(self, network: NetworkState, service_ranges: Sequence[str]) -> bool:
        """Bring settings, addresses and hooks in line with the network; sets `errors`.

        Returns true when the programs are at all cgroup hooks for the first time.
        """
        errors: dict[str, EbpflbError] = {}
        write_settings(
            self.maps["lb_settings"],
            flags=_flags(self._settings, network),
            primary=network.primary,
            timeouts=timeouts(self._settings),
            records=flow_records(self._settings),
        )
        write_service_nets(self.maps["lb_service_nets"], service_ranges)
        if network.node_addresses != self.network.node_addresses:
            self._may_forget = True
            try:
                self.sync.set_node_addresses(network.node_addresses)
            except MapError as error:
                if error.errno != E2BIG:
                    raise
                errors[error.map_name] = error
        applied = self.hooks.apply(network)
        _log_changes(applied.changes)
        self.errors = {**errors, **applied.errors}
        self.network = network
        if self._is_serving or CGROUP_HOOKS.keys() & applied.errors:
            return False
        self._is_serving = True
        return True

    def expire(self) -> ExpiryStep:
        if self._reservations.step(self.network.node_addresses):
            return ExpiryStep(0, finished=False)
        idle: Set[Address] = frozenset()
        if not self._is_expiring and self._may_forget:
            idle, self._may_forget = self.sync.idle_addresses(), False
        expired = self._expiry.step(idle)
        self._is_expiring = expired.unused is None
        if expired.unused:
            self.sync.forget_addresses(expired.unused)
        return ExpiryStep(expired.deleted, not self._is_expiring)


def _epoch(generation: Generation) -> int:
    """Where generations of backends start: those in flows of older maps must not come again."""
    return generation.number % _EPOCHS * _GENERATIONS_PER_EPOCH


def flows_wanted(settings: Settings) -> int:
    """As kube-proxy computes nf_conntrack_max."""
    scaled = settings.conntrack_max_per_core * (os.cpu_count() or 1)
    return min(max(scaled, settings.conntrack_min), _MOST_FLOWS)


def _flags(settings: Settings, network: NetworkState) -> SettingFlag:
    flags = SettingFlag(0)
    if settings.socket_lb == "host":
        flags |= SettingFlag.LB_SETTING_SOCKET_HOST
    accepts = node_port_filter(settings.nodeport_addresses, network.primary)
    if settings.localhost_nodeports and accepts(LOCALHOST):
        flags |= SettingFlag.LB_SETTING_LOCALHOST
    return flags


def _require_cgroup2(path: Path) -> None:
    try:
        if libc.filesystem_type(path) == libc.CGROUP2_SUPER_MAGIC:
            return
        problem = "not a cgroup v2 directory"
    except OSError as error:
        problem = str(error.strerror)
    raise ConfigError(
        f"--cgroup-root {path}: {problem} (`grep cgroup2 /proc/mounts` shows where they are)"
    )


def _log_changes(changes: Mapping[str, Change]) -> None:
    """Log changed cgroup hooks and devices in one line; changed maps are not logged."""
    kinds: dict[Change, list[str]] = {kind: [] for kind in Change}
    for name, change in changes.items():
        if name not in MAPS:
            kinds[change].append(name)
    shown = {kind.name.lower(): ",".join(names) for kind, names in kinds.items() if names}
    if shown:
        _log.info("hooks changed", extra=fields(**shown))

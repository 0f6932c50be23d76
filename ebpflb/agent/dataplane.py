# SPDX-License-Identifier: Apache-2.0
"""Everything of this node that lives in the kernel: generation, maps and hooks, as one thing.

Whatever is done to it, what is attached goes on working: a new generation is filled before the
hooks move to it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from errno import E2BIG
from math import ceil
from pathlib import Path
from typing import NamedTuple

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
from ebpflb.dataplane.flows.reserved_ports import Reservations
from ebpflb.dataplane.flows.stale_sockets import StaleSockets
from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.enums import FlowEvent, SettingFlag
from ebpflb.dataplane.layout.map_sizes import Sizes, sizes_for
from ebpflb.dataplane.layout.map_specs import MAPS
from ebpflb.dataplane.load.loader import Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.services.service_cidrs import write_service_nets
from ebpflb.dataplane.services.settings import FlowRecords, Timeouts, write_settings
from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import ConfigError, EbpflbError, LoadError, MapError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family

_log = logging.getLogger("ebpflb.agent")

# Flows looked at in one step: some milliseconds, for which a change may have to wait.
EXPIRY_BUDGET = 2048

_MOST_FLOWS = 1048576
_EPOCHS, _GENERATIONS_PER_EPOCH = 1 << 15, 1 << 16


Ends = Callable[[Sequence[bytes]], None]


class _Active(NamedTuple):
    """A generation in use."""

    generation: Generation
    maps: MapSet
    sync: Sync
    hooks: Hooks
    expiry: Expiry
    reservations: Reservations
    sockets: StaleSockets


class Kernel:
    """The dataplane of the running kernel, for the network namespace of the calling thread."""

    def __init__(self, settings: Settings) -> None:
        """Take the pins. ProbeError for what the machine lacks, PinError if they are taken.

        ConfigError for a cgroup that is none.
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
        self._in_use: _Active | None = None
        self._tell_ends: Ends | None = None
        self._network = NetworkState({}, {}, {})
        self._node_ips: Mapping[Family, Address] = {}
        self._service_ranges: Sequence[str] = ()
        self._errors: Errors = {}
        # Set by each write; whoever waits for it clears it.
        self.written = threading.Event()
        self._usage: Mapping[str, tuple[int, int]] = {}
        self._quiesced: float | None = None
        self._committed = False
        self._may_forget = True
        self._expiring = False

    @property
    def families(self) -> tuple[str, ...]:
        """The IP families that the kernel has."""
        return ("IPv4", "IPv6") if self._probe.supports(Feature.IPV6) else ("IPv4",)

    @property
    def lacks(self) -> Mapping[str, str]:
        """What the kernel does not have, and what is done without it."""
        return self._probe.lacks()

    @property
    def maps(self) -> MapSet | None:
        """Those in use, None before the start; for any thread."""
        return self._in_use.maps if self._in_use else None

    def tell_ends(self, tell: Ends) -> None:
        """Before start(): who is given the records of flows that expire."""
        self._tell_ends = tell

    def close(self) -> None:
        """Release the pins; they stay, and so does what is attached."""
        if self._in_use:
            self._in_use.hooks.close()
        self._pins.close()

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        """See Dataplane."""
        generation = self._loader.load(self._sizes_for(desired))
        refused = self._move(generation, desired, keep_others=keep_others)
        # Those that were made while the hooks were attached.
        self._active.reservations.renew(self._network.node_addresses)
        for hook in CGROUP_HOOKS:
            if hook in self._errors:
                raise self._errors[hook]
        return refused

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """See Dataplane. LoadError when there is far more room than `desired` could need."""
        sizes, needed = pinned_sizes(self._active.generation), self._sizes_for(desired)
        if sizes == sizes.at_least(needed.grown().grown()):
            raise LoadError(f"the maps are large enough already: {sizes}")
        sizes = sizes.grown().at_least(needed)
        _log.info("making room", extra=fields(frontends=sizes.frontends, slots=sizes.slots))
        return self._move(self._loader.load(sizes), desired, keep_others=keep_others)

    def apply(self, changed: Desired) -> Refused:
        """See Dataplane."""
        return self._wrote(self._active.sync.apply(changed))

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        """See Dataplane."""
        self._active.sync.load()
        return self._wrote(_write_all(self._active.sync, desired, keep_others=keep_others))

    def follow_network(self, *, repair: bool) -> Errors:
        """See Dataplane."""
        network = snapshot(self._settings, self._node_ips)
        if network != self._network or self._errors or repair:
            self._serve(network)
        return self._errors

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        """See Dataplane."""
        self._node_ips = node_ips

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        """See Dataplane."""
        self._service_ranges = ranges
        left_out = self._write_service_nets()
        if left_out:
            _log.warning("too many ServiceCIDRs, left out: %s", ", ".join(left_out))

    def _write_service_nets(self) -> Sequence[str]:
        return write_service_nets(self._active.maps["lb_service_nets"], self._service_ranges)

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        """See Dataplane."""

        def wait() -> None:
            began = time.monotonic()
            membarrier()
            self._quiesced = began
            ready()

        threading.Thread(target=wait, name="ebpflb-quiesce", daemon=True).start()

    def collect(self) -> None:
        """See Dataplane."""
        self._active.sync.collect(self._quiesced)

    def expire(self) -> ExpiryStep:
        """See Dataplane."""
        if self._active.reservations.step(self._network.node_addresses):
            return ExpiryStep(0, finished=False)
        sync, expiry = self._active.sync, self._active.expiry
        begins = not self._expiring
        idle = sync.idle_addresses() if begins and self._may_forget else frozenset()
        if begins:
            self._may_forget = False
        expired = expiry.step(idle)
        self._expiring = expired.unused is None
        if expired.unused:
            sync.forget_addresses(expired.unused)
        return ExpiryStep(expired.deleted, not self._expiring)

    def take_ended_udp(self) -> bool:
        """See Dataplane."""
        return self._active.sync.take_ended_udp()

    def end_udp_sockets(self) -> EndedSockets:
        """See Dataplane."""
        if not self._probe.supports(Feature.SOCKET_DESTROY):
            return EndedSockets({}, pending=False)
        return EndedSockets(*self._active.sockets.end())

    @property
    def usage(self) -> Mapping[str, tuple[int, int]]:
        """How full the maps are that only the sync fills: (used, room for). For any thread."""
        return self._usage

    @property
    def _active(self) -> _Active:
        if self._in_use is None:
            raise RuntimeError("not started")
        return self._in_use

    def _sizes_for(self, desired: Desired) -> Sizes:
        every = (frontend for frontends in desired.values() for frontend in frontends)
        return sizes_for(every, flows_wanted(self._settings))

    def _move(self, generation: Generation, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps of a generation, then have the hooks run its programs."""
        network = snapshot(self._settings, self._node_ips)
        active = self._open(generation)
        active.sync.load()
        refused = _write_all(active.sync, desired, keep_others=keep_others)
        old, self._in_use = self._in_use, active
        if old:
            old.hooks.close()
        self._network = NetworkState({}, {}, {})
        self._committed = self._expiring = False
        # From the first hook on ports are given out.
        active.reservations.renew(network.node_addresses)
        self._serve(network)
        return self._wrote(refused)

    def _open(self, generation: Generation) -> _Active:
        maps = open_maps(generation.maps)
        places = HookPlaces(generation.progs, self._pins.links, self._settings.cgroup_root)
        return _Active(
            generation,
            maps,
            Sync(maps, grace=GRACE_SECONDS, epoch=_epoch(generation)),
            Hooks(places, maps, self._probe, self._settings.attach),
            Expiry(maps, budget=EXPIRY_BUDGET, tell=self._tell_ends),
            Reservations(maps),
            StaleSockets(maps),
        )

    def _serve(self, network: NetworkState) -> None:
        """Bring settings, addresses and hooks in line; afterwards `_errors` says what failed."""
        active, errors = self._active, dict[str, EbpflbError]()
        write_settings(
            active.maps["lb_settings"],
            flags=_flags(self._settings, network),
            primary=network.primary,
            timeouts=timeouts(self._settings),
            records=flow_records(self._settings),
        )
        self._write_service_nets()
        if network.node_addresses != self._network.node_addresses:
            self._set_addresses(network, errors)
        applied = active.hooks.apply(network)
        _log_changes(applied.changes)
        self._errors = {**errors, **applied.errors}
        self._network = network
        if not (self._committed or CGROUP_HOOKS.keys() & applied.errors):
            self._loader.finish(active.generation)
            self._committed = True

    def _set_addresses(self, network: NetworkState, errors: dict[str, EbpflbError]) -> None:
        self._may_forget = True
        try:
            self._active.sync.set_node_addresses(network.node_addresses)
        except MapError as error:
            if error.errno != E2BIG:
                raise
            errors[error.map_name] = error

    def _wrote(self, refused: Refused) -> Refused:
        self._usage = self._active.sync.usage()
        self.written.set()
        self._may_forget = True
        return refused


def _write_all(sync: Sync, desired: Desired, *, keep_others: bool) -> Refused:
    return sync.apply(desired) if keep_others else sync.resync(desired)


def _epoch(generation: Generation) -> int:
    """Flows that outlive a set of maps name backends by generations that must not come again."""
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


def timeouts(settings: Settings) -> Timeouts:
    """As the settings say, which leave some to the dataplane."""
    default = Timeouts()
    established = ceil(settings.conntrack_tcp_timeout_established) or default.tcp_established
    return Timeouts(
        established,
        ceil(settings.conntrack_tcp_timeout_close_wait) or established,
        ceil(settings.conntrack_udp_timeout) or default.udp,
        ceil(settings.conntrack_udp_timeout_stream) or default.udp_stream,
    )


def flow_records(settings: Settings) -> FlowRecords:
    """Which records the programs make."""
    events = frozenset(FlowEvent[f"LB_FLOW_{event.upper()}"] for event in settings.flow_events)
    return FlowRecords(events, settings.flow_sample, settings.flow_rate)


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
    """One line for what changed at sockets and devices; maps are not worth one."""
    kinds: dict[Change, list[str]] = {kind: [] for kind in Change}
    for name, change in changes.items():
        if name not in MAPS:
            kinds[change].append(name)
    shown = {kind.name.lower(): ",".join(names) for kind, names in kinds.items() if names}
    if shown:
        _log.info("hooks changed", extra=fields(**shown))

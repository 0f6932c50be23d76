# SPDX-License-Identifier: Apache-2.0
"""Everything of this node that lives in the kernel: generation, maps and hooks, as one thing.

Whatever is done to it, what is attached goes on working: a new generation is filled before the
hooks move to it.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from errno import E2BIG
from pathlib import Path
from typing import NamedTuple

from ebpflb.agent.interface import GRACE_SECONDS, Desired, Errors, Expired, Refused
from ebpflb.config import Settings
from ebpflb.dataplane import libc
from ebpflb.dataplane.counters import read_drops
from ebpflb.dataplane.devices import NetworkState, snapshot
from ebpflb.dataplane.expire import Expiry
from ebpflb.dataplane.fill import used_entries
from ebpflb.dataplane.hooks import HookPlaces, Hooks
from ebpflb.dataplane.layout import MAPS
from ebpflb.dataplane.links import CGROUP_HOOKS, Change
from ebpflb.dataplane.loader import Loader, pinned_sizes
from ebpflb.dataplane.maps import MapSet, open_maps
from ebpflb.dataplane.pins import Generation, Pins
from ebpflb.dataplane.plain import word
from ebpflb.dataplane.probe import Feature, Probe
from ebpflb.dataplane.quiesce import membarrier
from ebpflb.dataplane.settings import write_settings
from ebpflb.dataplane.sizes import Sizes, sizes_for
from ebpflb.dataplane.sync import Sync
from ebpflb.errors import ConfigError, EbpflbError, LoadError, MapError
from ebpflb.log import fields
from ebpflb.observe.metrics import Reading

_log = logging.getLogger("ebpflb.agent")

# Flows looked at in one step: some milliseconds, for which a change may have to wait.
EXPIRY_BUDGET = 2048

_EPOCHS, _GENERATIONS_PER_EPOCH = 1 << 15, 1 << 16

# Looked through at a scrape; how full the others are is known without looking.
_FLOW_TABLES = ("lb_conntrack", "lb_ct_short", "lb_sockets", "lb_devices", "lb_netns")


class _Active(NamedTuple):
    """A generation in use."""

    generation: Generation
    maps: MapSet
    sync: Sync
    hooks: Hooks
    expiry: Expiry


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
        )
        self._in_use: _Active | None = None
        self._network = NetworkState({}, {}, {})
        self._errors: Errors = {}
        self._usage: Mapping[str, tuple[int, int]] = {}
        self._quiesced: float | None = None
        self._committed = False
        self._may_forget = True
        self._expiring = False

    @property
    def families(self) -> tuple[str, ...]:
        """The IP families that the kernel has."""
        return ("IPv4", "IPv6") if self._probe.supports(Feature.IPV6) else ("IPv4",)

    def close(self) -> None:
        """Release the pins; they stay, and so does what is attached."""
        if self._in_use:
            self._in_use.hooks.close()
        self._pins.close()

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        """See Dataplane."""
        generation = self._loader.load(_sizes_for(desired))
        refused = self._move(generation, desired, keep_others=keep_others)
        for hook in CGROUP_HOOKS:
            if hook in self._errors:
                raise self._errors[hook]
        return refused

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """See Dataplane. LoadError when there is far more room than `desired` could need."""
        sizes, needed = pinned_sizes(self._active.generation), _sizes_for(desired)
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
        network = snapshot(self._settings)
        if network != self._network or self._errors or repair:
            self._serve(network)
        return self._errors

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

    def expire(self) -> Expired:
        """See Dataplane."""
        sync, expiry = self._active.sync, self._active.expiry
        begins = not self._expiring
        idle = sync.idle_addresses() if begins and self._may_forget else frozenset()
        if begins:
            self._may_forget = False
        expired = expiry.step(idle)
        self._expiring = expired.unused is None
        if expired.unused:
            sync.forget_addresses(expired.unused)
        return Expired(expired.deleted, not self._expiring)

    def read(self) -> Reading:
        """See Dataplane."""
        if self._in_use is None:
            return Reading()
        maps = self._in_use.maps
        flows = {name: (used_entries(maps, name), maps[name].max_entries) for name in _FLOW_TABLES}
        dropped = {word(reason): count for reason, count in read_drops(maps).items()}
        return Reading({**self._usage, **flows}, dropped)

    @property
    def _active(self) -> _Active:
        if self._in_use is None:
            raise RuntimeError("not started")
        return self._in_use

    def _move(self, generation: Generation, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps of a generation, then have the hooks run its programs."""
        network = snapshot(self._settings)
        active = self._open(generation)
        active.sync.load()
        refused = _write_all(active.sync, desired, keep_others=keep_others)
        old, self._in_use = self._in_use, active
        if old:
            old.hooks.close()
        self._network = NetworkState({}, {}, {})
        self._committed = self._expiring = False
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
            Expiry(maps, budget=EXPIRY_BUDGET),
        )

    def _serve(self, network: NetworkState) -> None:
        """Bring settings, addresses and hooks in line; afterwards `_errors` says what failed."""
        active, errors = self._active, dict[str, EbpflbError]()
        host_only = self._settings.socket_lb == "host"
        write_settings(
            active.maps["lb_settings"], socket_host_only=host_only, primary=network.primary
        )
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
        self._may_forget = True
        return refused


def _write_all(sync: Sync, desired: Desired, *, keep_others: bool) -> Refused:
    return sync.apply(desired) if keep_others else sync.resync(desired)


def _epoch(generation: Generation) -> int:
    """Flows that outlive a set of maps name backends by generations that must not come again."""
    return generation.number % _EPOCHS * _GENERATIONS_PER_EPOCH


def _sizes_for(desired: Desired) -> Sizes:
    return sizes_for(frontend for frontends in desired.values() for frontend in frontends)


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

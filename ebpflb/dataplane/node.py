# SPDX-License-Identifier: Apache-2.0
"""The kernel side of one node as the agent sees it: pins, programs, maps and hooks together."""

import logging
from collections.abc import Callable
from errno import E2BIG, ENOSPC
from types import TracebackType
from typing import NamedTuple, Self

from ebpflb.config import Settings
from ebpflb.dataplane.devices import NetworkState
from ebpflb.dataplane.expire import Expired, Expiry
from ebpflb.dataplane.hooks import Applied, HookPlaces, Hooks
from ebpflb.dataplane.loader import Loader, pinned_sizes
from ebpflb.dataplane.maps import MapSet, open_maps
from ebpflb.dataplane.pins import Generation, Pins
from ebpflb.dataplane.probe import Feature, Probe
from ebpflb.dataplane.settings import write_settings
from ebpflb.dataplane.sizes import Sizes, sizes_for
from ebpflb.dataplane.sync import Desired, Refused, Sync
from ebpflb.errors import EbpflbError, MapError

_LOG = logging.getLogger("ebpflb.dataplane")
_FULL = (E2BIG, ENOSPC)


class Loaded(NamedTuple):
    """One generation at work."""

    generation: Generation
    maps: MapSet
    hooks: Hooks
    sync: Sync
    expiry: Expiry
    network: NetworkState


class Outcome(NamedTuple):
    """What could not be done, and what was done to hooks."""

    refused: Refused
    applied: Applied


class Dataplane:
    """Owns the pins from construction to `close()`, which leaves all in place. Not thread-safe.

    Errors: ProbeError and PinError at construction; those of the loader and of a wrong attach mode
    in `start()`; MapError when a write fails, after which the call is to be repeated.
    """

    def __init__(
        self, settings: Settings, desired: Callable[[], Desired], probe: Probe | None = None
    ) -> None:
        """`desired`: every Service with its frontends, asked when all must be written again."""
        self._settings = settings
        self._desired = desired
        self._probe = probe or Probe()
        self._probe.require()
        self._pins = Pins(settings.bpffs_root)
        has_set_retval = self._probe.supports(Feature.SET_RETVAL)
        self._loader = Loader(self._pins, has_set_retval=has_set_retval)
        self._loaded: Loaded | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the pins go; what is loaded and attached goes on."""
        if self._loaded:
            self._loaded.hooks.close()
        self._loaded = None
        self._pins.close()

    @property
    def loaded(self) -> Loaded:
        """What is at work; RuntimeError before `start()`."""
        if self._loaded is None:
            raise RuntimeError("the dataplane has not been started")
        return self._loaded

    def start(self, network: NetworkState) -> Outcome:
        """Load what is needed, write what differs, then attach."""
        return self._switch(self._wanted_sizes(), network)

    def apply(self, changed: Desired) -> Refused:
        """Give each of these Services its frontends; maps that are full grow."""
        refused = self.loaded.sync.apply(changed)
        if any(error.errno in _FULL for error in refused.values()):
            return self._grow(refused)
        return refused

    def set_network(self, network: NetworkState) -> Applied:
        """Bring addresses, settings and hooks in line with the node's network."""
        self._loaded = self.loaded._replace(network=network)
        return self._write_network(self._loaded)

    def expire(self) -> Expired:
        """Look at some flows; forget addresses that nothing names any more."""
        sync = self.loaded.sync
        expired = self.loaded.expiry.step(sync.idle_addresses())
        if expired.unused:
            sync.forget_addresses(expired.unused)
        return expired

    def _wanted_sizes(self) -> Sizes:
        return sizes_for(frontend for each in self._desired().values() for frontend in each)

    def _grow(self, refused: Refused) -> Refused:
        before = pinned_sizes(self.loaded.generation)
        wanted = before.at_least(self._wanted_sizes())
        sizes = before.grown() if wanted == before else wanted
        try:
            outcome = self._switch(sizes, self.loaded.network)
        except MapError:
            raise
        except EbpflbError as error:
            _LOG.error("maps cannot grow: %s", error)
            return refused
        _LOG.info("maps have grown: %s", sizes)
        return outcome.refused

    def _switch(self, sizes: Sizes, network: NetworkState) -> Outcome:
        """To the generation that these sizes ask for, which may be the current one."""
        loaded = self._open(self._loader.load(sizes), network)
        try:
            loaded.sync.load()
            refused = loaded.sync.resync(self._desired())
            applied = self._write_network(loaded)
            self._loader.finish(loaded.generation)
        except BaseException:
            loaded.hooks.close()
            raise
        if self._loaded:
            self._loaded.hooks.close()
        self._loaded = loaded
        return Outcome(refused, applied)

    def _open(self, generation: Generation, network: NetworkState) -> Loaded:
        maps = open_maps(generation.maps)
        places = HookPlaces(generation.progs, self._pins.links, self._settings.cgroup_root)
        hooks = Hooks(places, maps, self._probe, self._settings.attach)
        return Loaded(generation, maps, hooks, Sync(maps), Expiry(maps), network)

    def _write_network(self, loaded: Loaded) -> Applied:
        write_settings(
            loaded.maps["lb_settings"],
            socket_host_only=self._settings.socket_lb == "host",
            primary=loaded.network.primary,
        )
        loaded.sync.set_node_addresses(loaded.network.node_addresses)
        return loaded.hooks.apply(loaded.network)

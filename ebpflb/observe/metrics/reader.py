# SPDX-License-Identifier: Apache-2.0
"""From the maps to what metrics show. It reads, and holds no lock that a sync wants."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.view.capacity import used_entries
from ebpflb.dataplane.view.traffic_counts import TrafficCounts, TrafficReader
from ebpflb.errors import EbpflbError
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.backend_readings import BackendReadings
from ebpflb.observe.metrics.flow_readings import Drops, read_distributions, read_lost
from ebpflb.observe.metrics.port_readings import PortNumbers, PortReadings
from ebpflb.observe.metrics.reading import Reading

_log = logging.getLogger("ebpflb.agent")

# Looked through for this alone; how full the others are is known by then.
_OTHER_TABLES = ("lb_affinity", "lb_devices", "lb_netns")


class Kernel(Protocol):
    """Where the maps are; both may change at any time, each as a whole."""

    @property
    def maps(self) -> MapSet | None:
        """Those in use."""

    @property
    def usage(self) -> Mapping[str, tuple[int, int]]:
        """How full those are that the sync fills."""


class Shown(NamedTuple):
    """Which series there are besides those of the node."""

    services: bool = True
    backends: bool = False


class Reader:
    """Of one agent. For any thread: one reads after the other."""

    def __init__(
        self,
        kernel: Kernel,
        locations: EndpointLocations,
        shown: Shown,
        records: Mapping[str, int],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`records`: of flows so far, by event; somebody else counts them.

        `clock`: CLOCK_MONOTONIC in ns, as the kernel's programs have it.
        """
        self._kernel = kernel
        self._shown = shown
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()
        self._traffic = TrafficReader()
        self._drops = Drops()
        self._numbers = PortNumbers()
        self._ports = PortReadings(locations)
        self._backends = BackendReadings(locations)

    def begin(self) -> None:
        """Have what was counted before not taken for new."""
        try:
            self.read()
        except EbpflbError as error:
            _log.warning("cannot read the counters: %s", error)

    def read(self) -> Reading:
        """Everything. MapError."""
        maps = self._kernel.maps
        if maps is None:
            return Reading()
        with self._lock:
            found = self._traffic.read(maps, self._ports.counters)
            self._numbers.take(found)
            labels = self._numbers.labels()
            ports = self._ports.take(found, labels, self._clock())
            return Reading(
                entries={**self._kernel.usage, **_entries(maps, found)},
                dropped=self._drops.read(maps),
                records=dict(self._records),
                lost=read_lost(maps),
                flows=read_distributions(maps),
                ports=ports if self._shown.services else (),
                backends=self._backends.take(found, labels) if self._shown.backends else (),
            )


def _entries(maps: MapSet, found: TrafficCounts) -> Mapping[str, tuple[int, int]]:
    used = {**found.active.entries, **{name: used_entries(maps, name) for name in _OTHER_TABLES}}
    return {name: (count, maps[name].max_entries) for name, count in used.items()}

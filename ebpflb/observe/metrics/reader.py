# SPDX-License-Identifier: Apache-2.0
"""Reads the maps for a scrape, without taking any lock that a sync needs."""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate, product
from math import inf
from typing import NamedTuple, Protocol

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import (
    DropPlace,
    DropReason,
    FlowLost,
    FlowPath,
    HistogramKind,
    XdpResult,
    word,
)
from ebpflb.dataplane.layout.structs import BUCKETS
from ebpflb.dataplane.view.counts import Sums, grown, read_drops, sums
from ebpflb.dataplane.view.dump import used_entries
from ebpflb.dataplane.view.snapshot import Snapshot, SnapshotReader
from ebpflb.dataplane.view.traffic import Traffic
from ebpflb.errors import EbpflbError
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.balance import BackendBalance
from ebpflb.observe.metrics.latency import ServiceLatency
from ebpflb.observe.metrics.service_readings import (
    Distribution,
    PortNumbers,
    Reading,
    read_backends,
    read_ports,
)

# For a device that was gone before its drops were first read.
_GONE = "gone"
# Special keys that are not an ifindex.
_NAMES: Mapping[int, str] = {
    DropPlace.LB_DROP_AT_SOCKET: "sockets",
    DropPlace.LB_DROP_AT_POD: "pods",
}
_MICROSECOND = 1e-6
_LOST = {FlowLost.LB_LOST_FULL: "ring_full", FlowLost.LB_LOST_RATE: "rate_limit"}
_log = logging.getLogger("ebpflb.agent")
# Tables read only here; the snapshot has the entries of the others.
_OTHER_TABLES = ("lb_affinity", "lb_devices", "lb_netns")


class _HistogramMetric(NamedTuple):
    """A histogram. unit: the kernel's unit expressed in the metric's.

    bits: the buckets whose upper bounds are on the page. Times are truncated to whole microseconds,
    so one of n bits is less than 2 ** n; a number of bytes is at most 2 ** n - 1.
    """

    metric: str
    bits: range
    unit: float
    less: int


_HISTOGRAMS: Mapping[HistogramKind, _HistogramMetric] = {
    HistogramKind.LB_HISTOGRAM_DURATION: _HistogramMetric(
        "ebpflb_flow_duration_seconds", range(6, 38, 2), _MICROSECOND, 0
    ),
    HistogramKind.LB_HISTOGRAM_RTT: _HistogramMetric(
        "ebpflb_flow_rtt_seconds", range(4, 23), _MICROSECOND, 0
    ),
    HistogramKind.LB_HISTOGRAM_BYTES: _HistogramMetric("ebpflb_flow_bytes", range(6, 39, 2), 1, 1),
}


def read_distributions(maps: MapSet) -> Mapping[tuple[str, str], Distribution]:
    """By metric and path. MapError."""
    found = sums(maps["lb_histograms"])
    return {
        (_HISTOGRAMS[kind].metric, word(path)): _distribution(_HISTOGRAMS[kind], next(found))
        for path, kind in product(FlowPath, HistogramKind)
    }


def _distribution(metric: _HistogramMetric, counted: Sums) -> Distribution:
    up_to = list(accumulate(counted[:BUCKETS]))
    buckets = [(((1 << bits) - metric.less) * metric.unit, up_to[bits]) for bits in metric.bits]
    return Distribution([*buckets, (inf, up_to[-1])], counted[BUCKETS] * metric.unit)


def read_lost(maps: MapSet) -> Mapping[str, int]:
    """Number of missing records by reason. MapError."""
    found = list(sums(maps["lb_flow_lost"]))
    return {name: found[reason][0] for reason, name in _LOST.items()}


def read_xdp(maps: MapSet) -> Mapping[str, int]:
    """Packets at XDP by outcome; empty if there were none. MapError."""
    found = sums(maps["lb_count_xdp"])
    counts = {word(result): each[0] for result, each in zip(XdpResult, found, strict=True)}
    return counts if any(counts.values()) else {}


class DropTotals:
    """Drops by reason and by the name that the device had when they were read.

    A removed device keeps its last name.
    """

    def __init__(self, name_of: Callable[[int], str] = socket.if_indextoname) -> None:
        """`name_of`: name of an ifindex; OSError if there is no such device."""
        self._name_of = name_of
        self._names: dict[int, str] = {}
        self._counted: Mapping[tuple[DropReason, int], int] = {}
        self._sums: Counter[tuple[str, str]] = Counter()

    def read(self, maps: MapSet) -> Mapping[tuple[str, str], int]:
        """By reason and interface: sums that only increase. MapError."""
        before, self._counted = self._counted, read_drops(maps)
        for (reason, ifindex), count in self._counted.items():
            (new,) = grown((before.get((reason, ifindex), 0),), (count,))
            if new:
                self._sums[word(reason), self._name(ifindex)] += new
        return dict(self._sums)

    def _name(self, ifindex: int) -> str:
        if ifindex in _NAMES:
            return _NAMES[ifindex]
        try:
            self._names[ifindex] = self._name_of(ifindex)
        except OSError:
            self._names.setdefault(ifindex, _GONE)
        return self._names[ifindex]


class MapSource(Protocol):
    """Access to the maps. Both attributes may be replaced at any time, each as a whole."""

    @property
    def maps(self) -> MapSet | None:
        """The maps in use."""

    @property
    def usage(self) -> Mapping[str, tuple[int, int]]:
        """Used and maximum entries of the maps that the sync fills."""


class OptionalSeries(NamedTuple):
    """Which optional series the page has besides those of the node. latency: as it is counted."""

    services: bool = True
    backends: bool = False
    latency: ServiceLatency | None = None


class MapReader:
    """Reads everything that a scrape shows. Thread-safe: reads are serialized."""

    def __init__(
        self,
        source: MapSource,
        locations: EndpointLocations,
        series: OptionalSeries,
        records: Mapping[str, int],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`records`: number of flow records by event, counted by the flow reader.

        `clock`: CLOCK_MONOTONIC in ns, as in the BPF programs.
        """
        self._source = source
        self._series = series
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshots = SnapshotReader()
        self._drops = DropTotals()
        self._numbers = PortNumbers()
        self._balance = BackendBalance(locations)
        self._locations = locations
        self._traffic = Traffic()

    def begin(self) -> None:
        """Note what backends have counted, so that it does not look new."""
        maps = self._source.maps
        try:
            if maps is not None:
                with self._lock:
                    self._balance.begin(sums(maps["lb_count_back"]))
        except EbpflbError as error:
            _log.warning("cannot read the counters: %s", error)

    def read(self) -> Reading:
        """MapError."""
        maps = self._source.maps
        if maps is None:
            return Reading()
        with self._lock:
            snapshot = self._snapshots.read(maps, self._traffic.counters)
            self._numbers.update(snapshot)
            labels = self._numbers.labels()
            by_type = self._traffic.by_type(snapshot)
            self._balance.update(snapshot)
            by_backend = self._traffic.by_backend(snapshot) if self._series.backends else {}
            latency = self._series.latency
            return Reading(
                entries={**self._source.usage, **_entries(maps, snapshot)},
                dropped=self._drops.read(maps),
                records=dict(self._records),
                lost=read_lost(maps),
                xdp=read_xdp(maps),
                flows=read_distributions(maps),
                ports=read_ports(
                    snapshot,
                    by_type,
                    self._balance.ports,
                    labels,
                    self._locations,
                    self._clock(),
                )
                if self._series.services
                else (),
                backends=read_backends(by_backend, labels, self._locations),
                latency=latency.readings(labels) if latency else (),
            )


def _entries(maps: MapSet, snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    others = {name: used_entries(maps, name) for name in _OTHER_TABLES}
    used = {**snapshot.active.entries, **others}
    return {name: (count, maps[name].max_entries) for name, count in used.items()}

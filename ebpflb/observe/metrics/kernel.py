# SPDX-License-Identifier: Apache-2.0
"""The metrics of the dataplane as a whole: maps, drops, flow records, flows by path."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ebpflb.observe.metrics.service_readings import Distribution, Reading
from ebpflb.words.connections import FLOW_EVENTS

# Contents of lb_histograms: metric -> help text.
FLOW_METRICS: Mapping[str, str] = {
    "ebpflb_flow_duration_seconds": "Duration of flows that ended.",
    "ebpflb_flow_rtt_seconds": "Smoothed round trip time of TCP connections that ended.",
    "ebpflb_flow_bytes": "Payload bytes of flows that ended, both directions together.",
}

_DROPPED = "Packets and connections dropped or refused. interface: a host device, pods or sockets."
_XDP_PACKETS = "Packets at XDP that may have been for a Service: sent, or why tc got them."
_RECORDS_LOST = (
    "Flow records that the kernel could not write: ring_full (not read in time), rate_limit."
)


def kernel_families(reading: Reading) -> Iterator[Metric]:
    yield from _maps(reading)
    dropped = _counter("dropped", _DROPPED, "reason", "interface")
    for reason_and_interface, count in reading.dropped.items():
        dropped.add_metric(reason_and_interface, count)
    yield dropped
    records = _counter("flow_records", "Flow records read from the kernel.", "event")
    for event in FLOW_EVENTS:
        records.add_metric([event], reading.records.get(event, 0))
    yield records
    lost = _counter("flow_records_lost", _RECORDS_LOST, "reason")
    for reason, count in reading.lost.items():
        lost.add_metric([reason], count)
    yield lost
    xdp = _counter("xdp_packets", _XDP_PACKETS, "result")
    for result, count in reading.xdp.items():
        xdp.add_metric([result], count)
    yield xdp
    yield from _flows(reading.flows)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"ebpflb_{name}", text, labels=labels)


def _maps(reading: Reading) -> Iterator[Metric]:
    used = GaugeMetricFamily("ebpflb_map_entries", "Entries in use in a BPF map.", labels=["map"])
    room = GaugeMetricFamily(
        "ebpflb_map_max_entries", "Maximum number of entries of a BPF map.", labels=["map"]
    )
    for name, (entries, most) in reading.entries.items():
        used.add_metric([name], entries)
        room.add_metric([name], most)
    yield from (used, room)


def _flows(found: Mapping[tuple[str, str], Distribution]) -> Iterator[Metric]:
    for metric, text in FLOW_METRICS.items():
        family = HistogramMetricFamily(metric, text, labels=["path"])
        for (name, path), (buckets, total) in found.items():
            if name == metric:
                bounds = [("+Inf" if end == inf else str(end), count) for end, count in buckets]
                family.add_metric([path], bounds, total)
        yield family


class KeptCounts(NamedTuple):
    """lost: records that were not kept. damaged: files that cannot be read to their end."""

    lost: int = 0
    damaged: int = 0


class FlowCollector(Collector):
    """Flow records by client, and lost ones; Reading.lost has those lost in the kernel."""

    def __init__(
        self,
        unreadable: Callable[[], int],
        not_exported: Callable[[], int],
        kept: Callable[[], KeptCounts],
        clients: Callable[[], Iterable[Metric]],
    ) -> None:
        self._unreadable = unreadable
        self._not_exported = not_exported
        self._kept = kept
        self._clients = clients

    def describe(self) -> Iterable[Metric]:
        """Without it the registry would call `collect()` to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "ebpflb_flow_records_unreadable",
            "Flow records written by another version of the programs, which are skipped.",
            self._unreadable(),
        )
        yield CounterMetricFamily(
            "ebpflb_flow_export_lost",
            "Flow records that could not be written to --flow-export.",
            self._not_exported(),
        )
        kept = self._kept()
        yield CounterMetricFamily(
            "ebpflb_flow_history_lost",
            "Flow records that could not be kept in --flow-history-directory.",
            kept.lost,
        )
        yield CounterMetricFamily(
            "ebpflb_flow_history_damaged_files",
            "Files of kept flow records that a query could not read to their end.",
            kept.damaged,
        )
        yield from self._clients()

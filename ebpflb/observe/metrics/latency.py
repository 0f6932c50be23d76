# SPDX-License-Identifier: Apache-2.0
"""How long the connections of each Service port take, counted from flow records as they come.

Of TCP connections that were translated at the socket: only their records have a measured time.
"""

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebpflb.dataplane.flows.records import StoredFlow, latency
from ebpflb.model.flow import flow_id
from ebpflb.model.service import ServicePortName
from ebpflb.observe.metrics.service_readings import Exemplar, LatencyReading, PortLabels

# Upper bounds of the buckets, in seconds: closest where most clusters are, from 1 to 100 ms.
BOUNDS = (
    *(0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
)
EXEMPLAR_LABEL = "flow_id"
# More than the Services of a cluster need. Those of removed ones leave when a page is made.
_MOST_HISTOGRAMS = 1 << 17
_SECOND = 1_000_000_000


@dataclass(slots=True)
class _Histogram:
    """By bucket; the last one is above all bounds. Exemplars are the latest ones."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum: float = 0.0
    exemplars: list[Exemplar | None] = field(default_factory=lambda: [None] * (len(BOUNDS) + 1))


class ServiceLatency:
    """The histograms of all Service ports that have had such connections. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By Service port and event.
        self._histograms: dict[tuple[ServicePortName, str], _Histogram] = {}

    def count(self, number: int, stored: StoredFlow) -> None:
        """Take a readable record. `number`: in the agent's history."""
        measured = latency(stored.record)
        if measured is None or stored.port is None:
            return
        event, seconds = measured
        key, place = (stored.port, event), bisect_left(BOUNDS, seconds)
        flow = flow_id(stored.time, number)
        with self._lock:
            found = self._histograms.get(key)
            if found is None:
                if len(self._histograms) >= _MOST_HISTOGRAMS:
                    return
                found = self._histograms[key] = _Histogram()
            found.counts[place] += 1
            found.sum += seconds
            found.exemplars[place] = Exemplar(flow, seconds, stored.time / _SECOND)

    def readings(self, labels: Mapping[ServicePortName, PortLabels]) -> list[LatencyReading]:
        """Those of the ports in `labels`; all others begin anew."""
        with self._lock:
            for key in [key for key in self._histograms if key[0] not in labels]:
                del self._histograms[key]
            return [
                LatencyReading(
                    event, labels[port], tuple(each.counts), each.sum, tuple(each.exemplars)
                )
                for (port, event), each in self._histograms.items()
            ]

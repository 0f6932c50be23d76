# SPDX-License-Identifier: Apache-2.0
"""The latency of Service ports as lines of the /metrics page; see services.py for why."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from ebpflb.observe.metrics.latency import BOUNDS, EXEMPLAR_LABEL
from ebpflb.observe.metrics.service_readings import Exemplar, LatencyReading, PortLabels
from ebpflb.observe.metrics.services import head, label_text
from ebpflb.observe.metrics.text_format import TextFormat
from ebpflb.words.connections import END, START

_BOUNDS = (*map(str, BOUNDS), "+Inf")
# By the event whose records have it: the metric and its help text.
LATENCY_METRICS: Mapping[str, tuple[str, str]] = {
    START: (
        "ebpflb_service_connect_seconds",
        "Time from the SYN of a TCP connection to the answer of its backend.",
    ),
    END: (
        "ebpflb_service_rtt_seconds",
        "Smoothed round trip time of TCP connections that ended.",
    ),
}


def latency_lines(readings: Sequence[LatencyReading], wanted: TextFormat) -> Iterator[str]:
    """Nothing of a metric without readings."""
    for event, (name, text) in LATENCY_METRICS.items():
        found = [each for each in readings if each.event == event]
        if found:
            yield head(name, "histogram", text)
        for each in found:
            yield from _histogram(name, each, wanted)


def _histogram(name: str, reading: LatencyReading, wanted: TextFormat) -> Iterator[str]:
    labels = label_text(PortLabels._fields, reading.labels)
    begin, count = f'{name}_bucket{{{labels},le="', 0
    exemplars = reading.exemplars if wanted.is_openmetrics else [None] * len(_BOUNDS)
    for bound, count, exemplar in zip(_BOUNDS, accumulate(reading.counts), exemplars, strict=True):
        yield f'{begin}{bound}"}} {count}{_shown(exemplar) if exemplar else ""}\n'
    yield f"{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {reading.sum}\n"


def _shown(exemplar: Exemplar) -> str:
    label = label_text((EXEMPLAR_LABEL,), (exemplar.flow,))
    return f" # {{{label}}} {exemplar.seconds} {exemplar.when:.3f}"

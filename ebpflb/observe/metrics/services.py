# SPDX-License-Identifier: Apache-2.0
"""The metrics of Services and of their backends, in Prometheus' text format.

A Service gets counters once it has traffic: a cluster has many more Services than one node uses.
The text is made here because prometheus_client needs 8 us per series, which would take a second
for 5,000 Services; this needs 0.5 us.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from ebpflb.model.flow import Counts
from ebpflb.observe.metrics.service_readings import BackendReading, PortLabels, PortReading
from ebpflb.observe.metrics.text_format import TextFormat

_PIECE_LINES = 256
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_Samples = Iterator[tuple[str, float]]
_Typed = Sequence[tuple[str, Counts]]
_BY_TYPE = (
    ("connections", "New connections and flows, by frontend type."),
    ("refused", "Connections refused because there is no endpoint, or for a limit."),
    ("dropped", "Dropped connections and first packets."),
    (
        "failed",
        "Connections that the backend refused or did not answer, unless they were retried.",
    ),
    ("retransmits", "Retransmitted TCP segments of connections translated at the socket."),
    ("retried", "Connections that a backend failed and that went to another one."),
)
_BOTH_WAYS = (
    ("bytes", "Payload bytes from clients (original) and to clients (reply)."),
    ("packets", "Packets from clients (original) and to clients (reply)."),
)
_CROSSINGS: tuple[tuple[str, str, Callable[[PortReading], int]], ...] = (
    (
        "cross_node_connections",
        "Connections to a backend on another node, since the agent started.",
        lambda port: port.cross_node,
    ),
    (
        "cross_zone_connections",
        "Connections to a backend in another zone, if both zones are known, since the agent "
        "started.",
        lambda port: port.cross_zone,
    ),
    (
        "cross_zone_bytes",
        "Payload bytes in both directions of such connections.",
        lambda port: port.cross_zone_bytes,
    ),
)
_IMBALANCE = (
    "Largest share of new connections that one backend got, divided by its even share; 1 is even. "
    "Covers the last 5 to 10 minutes, or less after a change of backends; absent below 10 "
    "connections per backend."
)
_UNUSABLE = (
    "While a port with traffic has no endpoint that this node may use: how many it has that are "
    "neither going away nor ready."
)
_FULL = "Of a port with max-connections: endpoints that have as many connections from this node."
_PER_BACKEND: tuple[tuple[str, str, str, Callable[[BackendReading], int]], ...] = (
    (
        "connections_total",
        "counter",
        "New connections and flows given to a backend.",
        lambda each: each.traffic.connections,
    ),
    (
        "failed_total",
        "counter",
        "Connections that this backend refused or did not answer.",
        lambda each: each.traffic.failed,
    ),
    (
        "bytes_total",
        "counter",
        "Payload bytes from and to a backend.",
        lambda each: each.traffic.original_bytes + each.traffic.reply_bytes,
    ),
    (
        "active_connections",
        "gauge",
        "Current connections and flows of a backend.",
        lambda each: each.active,
    ),
)


class MetricFamily(NamedTuple):
    """A metric. Names of counters end in _total. samples: the labels as text, and the value."""

    name: str
    kind: str
    text: str
    samples: Iterable[tuple[str, float]]


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels in the format of a sample, without the braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)


def in_pieces(lines: Iterator[str]) -> Iterator[bytes]:
    """The text of all lines.

    One text of all Services has megabytes: to join and to encode it keeps the interpreter's lock
    for tens of milliseconds.
    """
    while piece := "".join(islice(lines, _PIECE_LINES)):
        yield piece.encode()


def exposition(families: Iterable[MetricFamily], wanted: TextFormat) -> Iterator[str]:
    """The lines. A family without samples still has its HELP and TYPE lines."""
    return chain.from_iterable(_lines(family, wanted) for family in families)


def _lines(family: MetricFamily, wanted: TextFormat) -> Iterator[str]:
    name, kind = family.name, family.kind
    yield head(wanted.family(name, kind), kind, family.text)
    for labels, value in family.samples:
        yield f"{name}{{{labels}}} {value}\n"


def head(name: str, kind: str, text: str) -> str:
    """The lines before the samples of a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def service_families(ports: Sequence[PortReading]) -> Iterator[MetricFamily]:
    labelled = [(_labels(port.labels), port) for port in ports]
    typed = [
        (f'{labels},type="{kind}"', traffic)
        for labels, port in labelled
        for kind, traffic in port.traffic.items()
    ]
    yield from _typed_families(typed)
    for name, text, value in _CROSSINGS:
        yield MetricFamily(
            f"ebpflb_service_{name}_total",
            "counter",
            text,
            [(labels, value(port)) for labels, port in labelled],
        )
    yield MetricFamily(
        "ebpflb_service_active_connections",
        "gauge",
        "Current connections and flows.",
        [(labels, port.active) for labels, port in labelled],
    )
    yield MetricFamily(
        "ebpflb_service_removed_endpoint_connections",
        "gauge",
        "Current connections and flows of endpoints that were deleted, or are not ready any more.",
        [(labels, port.on_removed) for labels, port in labelled],
    )
    yield MetricFamily(
        "ebpflb_service_endpoints",
        "gauge",
        "Endpoints that this node may use; terminating ones count in that state only.",
        _endpoints(labelled),
    )
    yield MetricFamily(
        "ebpflb_service_unusable_endpoints",
        "gauge",
        _UNUSABLE,
        [(text, count) for text, port in labelled if (count := port.unusable) is not None],
    )
    yield MetricFamily(
        "ebpflb_service_full_endpoints",
        "gauge",
        _FULL,
        [(text, count) for text, port in labelled if (count := port.full) is not None],
    )
    yield from _age_and_balance(labelled)


def _typed_families(typed: _Typed) -> Iterator[MetricFamily]:
    for place, (name, text) in enumerate(_BY_TYPE):
        samples = [(labels, traffic[place]) for labels, traffic in typed]
        yield MetricFamily(f"ebpflb_service_{name}_total", "counter", text, samples)
    for name, text in _BOTH_WAYS:
        original = Counts._fields.index(f"original_{name}")
        reply = Counts._fields.index(f"reply_{name}")
        samples = [
            (f'{labels},direction="{direction}"', traffic[place])
            for labels, traffic in typed
            for direction, place in (("original", original), ("reply", reply))
        ]
        yield MetricFamily(f"ebpflb_service_{name}_total", "counter", text, samples)


def _endpoints(labelled: Iterable[tuple[str, PortReading]]) -> _Samples:
    for labels, port in labelled:
        for state, count in zip(("local", "remote", "terminating"), port.endpoints, strict=True):
            yield f'{labels},state="{state}"', count


def _age_and_balance(labelled: Sequence[tuple[str, PortReading]]) -> Iterator[MetricFamily]:
    yield MetricFamily(
        "ebpflb_service_oldest_connection_seconds",
        "gauge",
        "Age of the oldest current connection or flow.",
        [(text, age) for text, port in labelled if (age := port.oldest_seconds) is not None],
    )
    yield MetricFamily(
        "ebpflb_service_imbalance_ratio",
        "gauge",
        _IMBALANCE,
        [(text, ratio) for text, port in labelled if (ratio := port.imbalance) is not None],
    )


def backend_families(backends: Iterable[BackendReading]) -> Iterator[MetricFamily]:
    names = ("backend", "node", "zone")
    labelled = [
        (f"{_labels(each.labels)},{label_text(names, (each.backend, each.node, each.zone))}", each)
        for each in backends
    ]
    for name, kind, text, value in _PER_BACKEND:
        samples = [(labels, value(each)) for labels, each in labelled]
        yield MetricFamily(f"ebpflb_backend_{name}", kind, text, samples)


def _labels(labels: PortLabels) -> str:
    return label_text(PortLabels._fields, labels)

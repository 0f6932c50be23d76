# SPDX-License-Identifier: Apache-2.0
"""Every series that an agent can expose, and the series that PromQL expressions name."""

import re
from collections.abc import Mapping

from ebpflb.model.address import Family
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.observe.metrics.kernel import FLOW_METRICS, FlowCollector, KeptCounts
from ebpflb.observe.metrics.latency import BOUNDS
from ebpflb.observe.metrics.latency_text import LATENCY_METRICS
from ebpflb.observe.metrics.page import Metrics, Totals
from ebpflb.observe.metrics.service_readings import (
    BackendReading,
    Distribution,
    LatencyReading,
    PortLabels,
    PortReading,
    Reading,
)

METRIC = re.compile(
    r"\bebpflb:[\w:]+|\b(?:container|ebpflb|kubeproxy|process|python|scrape)_\w+|\bup\b"
)
# Series that Prometheus adds for each scrape, and labels that the chart's monitors add; cluster is
# one that their relabelings may add.
OF_PROMETHEUS = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
OF_TARGETS = frozenset({"job", "instance", "node", "cluster"})
# Of the kubelet (cAdvisor).
OF_KUBELET = {"container_memory_working_set_bytes": {"namespace", "pod", "container"}}

_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING = re.compile(r"\b(?:by|without|on)\s*\(([\w, ]+)\)")
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
_LABEL = re.compile(r"(\w+)=\"")

_BUCKETS = len(BOUNDS) + 1
_PORT = PortLabels("default", "web", "http", "TCP")
_EVERYTHING = Reading(
    entries={"lb_conntrack": (1, 2)},
    dropped={("no_endpoint", "eth0"): 1},
    lost={"ring_full": 1},
    flows={(name, "tc"): Distribution([(float("inf"), 1)], 1.0) for name in FLOW_METRICS},
    ports=[
        PortReading(
            _PORT,
            {FrontendType.CLUSTER_IP: Counts()},
            oldest_seconds=1.0,
            imbalance=1.0,
            unusable=1,
            full=1,
        )
    ],
    backends=[BackendReading(_PORT, "10.0.0.1:80", "node1", "zone-a", Counts(), 1)],
    latency=[
        LatencyReading(event, _PORT, [1] * _BUCKETS, 1.0, [None] * _BUCKETS)
        for event in LATENCY_METRICS
    ],
)


def exposed() -> Mapping[str, frozenset[str]]:
    """The labels of each series, by its name, including target labels."""
    found = {name: set(OF_TARGETS) for name in OF_PROMETHEUS}
    for name, labels in _SAMPLE.findall(_page()):
        found.setdefault(name, set(OF_TARGETS)).update(_LABEL.findall(labels))
    return {name: frozenset(labels) for name, labels in (found | OF_KUBELET).items()}


def metrics_of(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(METRIC.findall(expression))


def labels_of(expression: str) -> set[str]:
    """The labels that an expression asks for or groups by."""
    grouped = (name.strip() for each in _GROUPING.findall(expression) for name in each.split(","))
    return {*_MATCHER.findall(expression), *grouped}


def _page() -> str:
    metrics = Metrics(["IPv4", "IPv6"], lambda: _EVERYTHING)
    metrics.registry.register(FlowCollector(lambda: 0, lambda: 0, KeptCounts, lambda: ()))
    metrics.changed(1, 1)
    metrics.synced(0.1, full=True, complete=True)
    metrics.synced(0.1, full=False, complete=False)
    metrics.programmed([(Family.IPV4, 0.1)])
    metrics.reconciled(0.1, {Family.IPV4: 1})
    metrics.lacks(["anything"])
    for path in ("/healthz", "/livez"):
        metrics.answered(path, 200)
    metrics.show(Totals(source_errors=("a.yaml",)))
    return metrics.page().body.decode()

# SPDX-License-Identifier: Apache-2.0
"""Every Prometheus metric of the agent.

What kube-proxy measures as well has kube-proxy's name, labels and buckets. One sync writes both
families, so metrics with the label ip_family have the same value for each.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    GCCollector,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ebpflb import __version__
from ebpflb.observe.server import Answer

# kube-proxy's: 15 buckets from 1 ms, each twice the one before.
_BUCKETS = [0.001 * 2**power for power in range(15)]
_FAMILY = ["ip_family"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the kernel holds. map_entries: map -> (used, room for); dropped: reason -> count."""

    map_entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


class Metrics:
    """All metrics of one agent, in a registry of their own."""

    def __init__(self, families: Iterable[str], read: Callable[[], Reading] = Reading) -> None:
        """`read` is called at every scrape, in the thread of the scrape."""
        self.registry = CollectorRegistry()
        self._families = tuple(families)
        self._add_sync_metrics()
        self._add_change_metrics()
        self._add_own_metrics()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_KernelCollector(read))

    def _add_sync_metrics(self) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        self._duration = self._histogram(f"{prefix}_duration_seconds", "Every sync.")
        self._full_duration = self._histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds", "Syncs of all Services."
        )
        self._partial_duration = self._histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds", "Syncs of what changed."
        )
        self._last_sync = self._gauge(
            f"{prefix}_last_timestamp_seconds", "When the last sync succeeded.", _FAMILY
        )
        self._last_queued = self._gauge(
            f"{prefix}_last_queued_timestamp_seconds", "When the last sync was asked for.", _FAMILY
        )
        self._no_local = self._gauge(
            f"{prefix}_no_local_endpoints_total",
            "Service ports whose policy is Local while all their endpoints are elsewhere.",
            ["traffic_policy", *_FAMILY],
        )

    def _add_change_metrics(self) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        self._pending = {
            kind: self._gauge(f"{prefix}_{kind}_changes_pending", f"Changed {what}, not in sync.")
            for kind, what in (("service", "Services"), ("endpoint", "EndpointSlices"))
        }
        self._changes = {
            kind: self._counter(f"{prefix}_{kind}_changes_total", f"Changes of {what} seen.")
            for kind, what in (("service", "Services"), ("endpoint", "EndpointSlices"))
        }
        self._healthz = self._counter("kubeproxy_proxy_healthz_total", "/healthz answers.", ["code"])
        self._livez = self._counter("kubeproxy_proxy_livez_total", "/livez answers.", ["code"])

    def _add_own_metrics(self) -> None:
        self._gauge("ebpflb_build_info", "The version that runs.", ["version"]).labels(
            __version__
        ).set(1)
        self._source_errors = self._gauge(
            "ebpflb_source_errors", "Manifests that cannot be read; the old content holds.", ["file"]
        )
        self._failures = self._counter(
            "ebpflb_sync_failures_total", "Syncs that left something undone."
        )
        self._services = self._gauge("ebpflb_services", "Services known.")
        self._frontends = self._gauge("ebpflb_frontends", "Frontends wanted.")
        self._refused = self._gauge("ebpflb_services_refused", "Services that do not fit the maps.")
        self._conflicts = self._gauge(
            "ebpflb_frontend_conflicts", "Frontends that a second Service wants in vain."
        )
        self._device_errors = self._gauge(
            "ebpflb_attach_errors", "Devices and hooks that our programs could not be attached to."
        )
        self._expired = self._counter("ebpflb_conntrack_expired_total", "Entries that timed out.")

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, _FAMILY, buckets=_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

# SPDX-License-Identifier: Apache-2.0
"""Every Prometheus metric of the agent.

What kube-proxy measures as well has kube-proxy's name, labels and buckets. One sync writes both
families, so what has the label ip_family is the same for each.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ebpflb import __version__
from ebpflb.errors import EbpflbError
from ebpflb.observe.server import Answer

_log = logging.getLogger("ebpflb.observe")

# kube-proxy's: 15 buckets from 1 ms, each twice the one before.
_BUCKETS = [0.001 * 2**power for power in range(15)]
_FAMILY = ["ip_family"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the kernel holds. entries: map -> (used, room for); dropped: reason -> how often."""

    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Totals:
    """What the agent knows. source_errors: the files; no_local: (policy, family) -> ports."""

    services: int = 0
    frontends: int = 0
    services_refused: int = 0
    conflicts: int = 0
    attach_errors: int = 0
    source_errors: tuple[str, ...] = ()
    no_local: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Metrics:
    """All metrics of one agent, in a registry of their own. Any thread may use it."""

    def __init__(self, families: Iterable[str], read: Callable[[], Reading] = Reading) -> None:
        """`read` is called at every scrape, in the thread that answers it."""
        # kube-proxy has no such series, and each would double the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._families = tuple(families)
        self._syncs = _Syncs(self.registry)
        self._changes = _Changes(self.registry)
        self._gauges = _Gauges(self.registry)
        self._answers = {
            "/healthz": _counter(
                self.registry, "kubeproxy_proxy_healthz_total", "Answers of /healthz.", ["code"]
            ),
            "/livez": _counter(
                self.registry, "kubeproxy_proxy_livez_total", "Answers of /livez.", ["code"]
            ),
        }
        self._expired = _counter(
            self.registry, "ebpflb_conntrack_expired_total", "Flow entries that timed out."
        )
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_KernelCollector(read))

    def changed(self, services: int, endpoints: int) -> None:
        """So many Services and EndpointSlices changed, and a sync is wanted."""
        self._changes.count("service", services * len(self._families))
        self._changes.count("endpoint", endpoints)
        for family in self._families:
            self._syncs.last_queued.labels(family).set(time.time())

    def taken(self) -> None:
        """No change is pending any more."""
        self._changes.taken()

    def synced(self, seconds: float, *, full: bool, complete: bool) -> None:
        """A sync took so long; `complete`: everything that was wanted is in the kernel."""
        self.taken()
        for family in self._families:
            self._syncs.duration.labels(family).observe(seconds)
            kind = self._syncs.full_duration if full else self._syncs.partial_duration
            kind.labels(family).observe(seconds)
            if complete:
                self._syncs.last.labels(family).set(time.time())
        if not complete:
            self._syncs.failures.inc()

    def expired(self, entries: int) -> None:
        """So many flow entries timed out."""
        self._expired.inc(entries)

    def answered(self, path: str, status: int) -> None:
        """A health server answered."""
        self._answers[path].labels(str(int(status))).inc()

    def show(self, totals: Totals) -> None:
        """Replace what the agent knows."""
        self._gauges.show(totals, self._families)

    def page(self) -> Answer:
        """The page /metrics."""
        return Answer(generate_latest(self.registry), CONTENT_TYPE_LATEST)


class _Syncs:
    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        self.duration = _histogram(registry, f"{prefix}_duration_seconds", "Time of each sync.")
        self.full_duration = _histogram(
            registry,
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Time of each sync of all Services.",
        )
        self.partial_duration = _histogram(
            registry,
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Time of each sync of what changed.",
        )
        self.last = Gauge(
            f"{prefix}_last_timestamp_seconds",
            "When a sync last succeeded, in seconds since 1970.",
            _FAMILY,
            registry=registry,
        )
        self.last_queued = Gauge(
            f"{prefix}_last_queued_timestamp_seconds",
            "When a sync was last wanted, in seconds since 1970.",
            _FAMILY,
            registry=registry,
        )
        self.failures = _counter(
            registry, "ebpflb_sync_failures_total", "Syncs that left something undone."
        )


class _Changes:
    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        kinds = {"service": "Services", "endpoint": "EndpointSlices"}
        self._totals = {
            kind: _counter(registry, f"{prefix}_{kind}_changes_total", f"Changes of {what}.")
            for kind, what in kinds.items()
        }
        self._pending = {
            kind: Gauge(
                f"{prefix}_{kind}_changes_pending",
                f"Changes of {what} that no sync has taken yet.",
                registry=registry,
            )
            for kind, what in kinds.items()
        }

    def count(self, kind: str, changes: int) -> None:
        self._totals[kind].inc(changes)
        self._pending[kind].inc(changes)

    def taken(self) -> None:
        for gauge in self._pending.values():
            gauge.set(0)


class _Gauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        plain = {
            "services": "Services that are known.",
            "frontends": "Frontends that the Services want.",
            "services_refused": "Services that do not fit and keep what they had.",
            "conflicts": "Frontends that a second Service wants in vain.",
            "attach_errors": "Devices, hooks and addresses that could not be served.",
        }
        self._plain = {
            name: Gauge(f"ebpflb_{name}", text, registry=registry) for name, text in plain.items()
        }
        self._source_errors = Gauge(
            "ebpflb_source_errors",
            "1 for a manifest that cannot be read; what it held before stays in force.",
            ["file"],
            registry=registry,
        )
        self._no_local = Gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with the policy Local whose endpoints are all on other nodes.",
            ["traffic_policy", *_FAMILY],
            registry=registry,
        )
        build = Gauge("ebpflb_build_info", "The version, always 1.", ["version"], registry=registry)
        build.labels(__version__).set(1)

    def show(self, totals: Totals, families: Iterable[str]) -> None:
        for name, gauge in self._plain.items():
            gauge.set(getattr(totals, name))
        self._source_errors.clear()
        for file in totals.source_errors:
            self._source_errors.labels(file).set(1)
        for family in families:
            for policy in ("internal", "external"):
                ports = totals.no_local.get((policy, family), 0)
                self._no_local.labels(policy, family).set(ports)


class _KernelCollector(Collector):
    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Spare the registry a look into the kernel just to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            reading = self._read()
        except EbpflbError as error:
            _log.warning("cannot read the maps for a scrape: %s", error)
            return
        used = GaugeMetricFamily(
            "ebpflb_map_entries", "Entries of a BPF map that are in use.", labels=["map"]
        )
        room = GaugeMetricFamily(
            "ebpflb_map_max_entries", "Entries that a BPF map has room for.", labels=["map"]
        )
        for name, (entries, most) in reading.entries.items():
            used.add_metric([name], entries)
            room.add_metric([name], most)
        dropped = CounterMetricFamily(
            "ebpflb_dropped", "Packets and connections not let through.", labels=["reason"]
        )
        for reason, count in reading.dropped.items():
            dropped.add_metric([reason], count)
        yield from (used, room, dropped)


def _histogram(registry: CollectorRegistry, name: str, text: str) -> Histogram:
    return Histogram(name, text, _FAMILY, buckets=_BUCKETS, registry=registry)


def _counter(
    registry: CollectorRegistry, name: str, text: str, labels: Iterable[str] = ()
) -> Counter:
    return Counter(name, text, labels, registry=registry)

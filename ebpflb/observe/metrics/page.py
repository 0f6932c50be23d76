# SPDX-License-Identifier: Apache-2.0
"""The /metrics page, and the metrics of the agent itself.

Metrics that kube-proxy also has use its names, labels and buckets. One sync writes both families,
so metrics with the label ip_family have the same value for each. What the kernel counts is in
kernel.py and services.py.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ebpflb import __version__
from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.dsr import Reachability
from ebpflb.model.ending.endings import EndReason
from ebpflb.observe.metrics.kernel import kernel_families
from ebpflb.observe.metrics.latency_text import latency_lines
from ebpflb.observe.metrics.service_readings import Reading
from ebpflb.observe.metrics.services import (
    backend_families,
    exposition,
    in_pieces,
    service_families,
)
from ebpflb.observe.metrics.text_format import PLAIN, TextFormat
from ebpflb.web.answers import Answer

_log = logging.getLogger("ebpflb.observe")

# kube-proxy's: 15 buckets from 1 ms, each twice the previous one.
_BUCKETS = [0.001 * 2**power for power in range(15)]
_LATENCY_BUCKETS = [
    *(0.25, 0.5),
    *map(float, range(1, 60)),
    *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
]
_FIRST_CONNECTION_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300)
_FAMILY = "ip_family"
PEER_STATES = (Reachability.REACHABLE.value, Reachability.UNREACHABLE.value)
# A hundred simultaneous scrapes cost as much as one.
FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of the agent. source_errors: number of files. no_local: ports by (policy, family).

    dsr_peers: by state, of PEER_STATES. addresses_refused: by reason.
    """

    services: int = 0
    frontends: int = 0
    services_refused: int = 0
    services_left_out: int = 0
    services_misconfigured: int = 0
    services_without_table: int = 0
    services_on_backup: int = 0
    conflicts: int = 0
    attach_errors: int = 0
    health_check_errors: int = 0
    ejected_endpoints: int = 0
    source_errors: tuple[str, ...] = ()
    no_local: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dsr_peers: Mapping[str, int] = field(default_factory=dict)
    addresses_refused: Mapping[str, int] = field(default_factory=dict)


class Metrics:
    """All metrics of one agent, in a registry of their own. Thread-safe."""

    def __init__(self, families: Iterable[str], read: Callable[[], Reading] = Reading) -> None:
        """`read` is called at every scrape, in the thread that answers it."""
        # kube-proxy has no such series, and they would double the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = _Registry()
        self._families = tuple(families)
        self._read = read
        self._syncs = _Syncs(registry)
        self._changes = _PendingChanges(registry)
        self._gauges = _AgentGauges(registry)
        self._answers = {
            f"/{path}": registry.counter(
                f"kubeproxy_proxy_{path}_total", f"Responses of /{path} by status.", "code"
            )
            for path in ("healthz", "livez")
        }
        self._expired = registry.counter(
            "ebpflb_conntrack_expired_total", "Flow entries that timed out."
        )
        self._endpoints = _Endpoints(registry)
        # kube-proxy deletes entries of the kernel's conntrack; ebpflb closes sockets instead.
        self._reconciler_duration = registry.histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "Duration of each search for UDP sockets whose backend is gone.",
            _FAMILY,
        )
        self._sockets_closed = registry.counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "UDP sockets closed because their backend is gone.",
            _FAMILY,
        )
        self._latency = registry.histogram(
            "kubeproxy_network_programming_duration_seconds",
            "Time from a change of endpoints until it is in force.",
            _FAMILY,
            buckets=_LATENCY_BUCKETS,
        )
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def changed(self, services: int, endpoints: int) -> None:
        """Count changed Services and EndpointSlices, which need a sync."""
        self._changes.count("service", services * len(self._families))
        self._changes.count("endpoint", endpoints)
        for family in self._families:
            self._syncs.last_queued.labels(family).set(time.time())

    def idle(self) -> None:
        """The changes made no difference: nothing is pending, and all are in force."""
        self._changes.clear()
        self._note_success()

    def tried(self, seconds: float, *, full: bool) -> None:
        """A sync took this long, whether it failed or not."""
        self._changes.clear()
        for family in self._families:
            self._syncs.duration.labels(family).observe(seconds)
            kind = self._syncs.full_duration if full else self._syncs.partial_duration
            kind.labels(family).observe(seconds)

    def synced(self, seconds: float, *, full: bool, complete: bool) -> None:
        """A sync succeeded in this time. `complete`: the kernel has everything that was planned."""
        self.tried(seconds, full=full)
        if complete:
            self._note_success()
        else:
            self.failed()

    def failed(self) -> None:
        """A sync did not finish everything."""
        self._syncs.failures.inc()

    def _note_success(self) -> None:
        for family in self._families:
            self._syncs.last.labels(family).set(time.time())

    def programmed(self, delays: Iterable[tuple[Family, float]]) -> None:
        """Changes of endpoints are in force, this many seconds after their trigger."""
        for family, seconds in delays:
            self._latency.labels(family.text).observe(seconds)

    def expired(self, entries: int) -> None:
        self._expired.inc(entries)

    def reconciled(self, seconds: float, ended: Mapping[Family, int]) -> None:
        """A search for UDP sockets of removed backends took this long, and closed this many."""
        for family in self._families:
            self._reconciler_duration.labels(family).observe(seconds)
        for kind, count in ended.items():
            self._sockets_closed.labels(kind.text).inc(count)

    def lacks(self, features: Iterable[str]) -> None:
        """The kernel lacks these features."""
        for feature in features:
            self._gauges.lacks.labels(feature).set(1)

    def unread(self, seconds: Callable[[], float], stale: Callable[[], float]) -> None:
        """`seconds` says at every scrape for how long something could not be read.

        `stale`: how old the state is that is served, if it comes from an earlier run.
        """
        self._gauges.unread.set_function(seconds)
        self._gauges.stale.set_function(stale)

    def answered(self, path: str, status: int) -> None:
        self._answers[path].labels(str(int(status))).inc()

    def show(self, totals: Totals) -> None:
        self._gauges.show(totals, self._families)

    def ejected(self) -> None:
        """An endpoint was ejected."""
        self._endpoints.ejections.inc()

    def ended(self, reason: str, count: int) -> None:
        """So many connections were ended."""
        self._endpoints.ended.labels(reason).inc(count)

    def first_connection(self, seconds: float) -> None:
        """An endpoint got its first connection this long after it was in force."""
        self._endpoints.first_connection.observe(seconds)

    def page(self, wanted: TextFormat = PLAIN) -> Answer:
        """The /metrics page; without the kernel's metrics if the maps cannot be read."""
        pieces = [wanted.write(self.registry)]
        try:
            pieces += _kernel_page(self._read(), wanted)
        except EbpflbError as error:
            _log.warning("cannot read the maps for a scrape: %s", error)
        return Answer(b"".join([*pieces, wanted.end]), wanted.content_type)


class _Registry(CollectorRegistry):
    """Creates metrics and registers them."""

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self)

    def histogram(
        self, name: str, text: str, *labels: str, buckets: Sequence[float] = _BUCKETS
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self)


class _Endpoints:
    def __init__(self, registry: _Registry) -> None:
        self.ejections = registry.counter(
            "ebpflb_endpoint_ejections_total",
            "Ejections of endpoints because connections to them failed.",
        )
        self.ended = registry.counter(
            "ebpflb_connections_ended_total",
            "TCP connections that were ended because annotations of their Services ask for it.",
            "reason",
        )
        for reason in EndReason:
            self.ended.labels(reason)
        self.first_connection = registry.histogram(
            "ebpflb_endpoint_first_connection_seconds",
            "Time from an endpoint being in force on this node to its first connection from or "
            "through it, seen at most a second late; endpoints that wait longer than 5 minutes "
            "are not observed.",
            buckets=_FIRST_CONNECTION_BUCKETS,
        )


class _Syncs:
    def __init__(self, registry: _Registry) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        self.duration = registry.histogram(
            f"{prefix}_duration_seconds", "Duration of each sync.", _FAMILY
        )
        self.full_duration = registry.histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Duration of each sync of all Services.",
            _FAMILY,
        )
        self.partial_duration = registry.histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Duration of each sync of changes only.",
            _FAMILY,
        )
        self.last = registry.gauge(
            f"{prefix}_last_timestamp_seconds",
            "Unix time of the last successful sync.",
            _FAMILY,
        )
        self.last_queued = registry.gauge(
            f"{prefix}_last_queued_timestamp_seconds",
            "Unix time of the last sync request.",
            _FAMILY,
        )
        self.failures = registry.counter(
            "ebpflb_sync_failures_total", "Syncs that failed and are retried."
        )


class _PendingChanges:
    def __init__(self, registry: _Registry) -> None:
        prefix = "kubeproxy_sync_proxy_rules"
        kinds = {"service": "Services", "endpoint": "EndpointSlices"}
        self._totals = {
            kind: registry.counter(f"{prefix}_{kind}_changes_total", f"Changes to {what}.")
            for kind, what in kinds.items()
        }
        self._pending = {
            kind: registry.gauge(
                f"{prefix}_{kind}_changes_pending", f"Changes to {what} not synced yet."
            )
            for kind, what in kinds.items()
        }

    def count(self, kind: str, changes: int) -> None:
        self._totals[kind].inc(changes)
        self._pending[kind].inc(changes)

    def clear(self) -> None:
        for gauge in self._pending.values():
            gauge.set(0)


_PLAIN = {
    "services": "Services in the desired state.",
    "frontends": "Frontends in the desired state.",
    "services_refused": "Services that do not fit into the maps and keep their old state.",
    "services_left_out": "Services that the selectors leave to another proxy.",
    "services_misconfigured": "Services with an invalid annotation, which is ignored.",
    "services_without_table": "Services that use random, because lookup tables lack room.",
    "services_on_backup": "Services whose new connections go to the endpoints of their backup.",
    "conflicts": "Frontends that a second Service claims but does not get.",
    "attach_errors": "Devices, hooks and addresses that are not served.",
    "health_check_errors": "Services whose health check node port is not answered here.",
    "ejected_endpoints": "Endpoints ejected because connections to them failed.",
}


class _AgentGauges:
    def __init__(self, registry: _Registry) -> None:
        self._plain = {
            name: registry.gauge(f"ebpflb_{name}", text) for name, text in _PLAIN.items()
        }
        self._source_errors = registry.gauge(
            "ebpflb_source_errors",
            "1 for each source that cannot be read; its last readable version stays in force.",
            "file",
        )
        self.unread = registry.gauge(
            "ebpflb_source_unread_seconds",
            "How long something of the API server's could not be listed or watched; 0 if all can.",
        )
        self.stale = registry.gauge(
            "ebpflb_source_stale_seconds",
            "How old the state is that is served as the API server has not answered since the "
            "start; 0 once it has.",
        )
        self._no_local = registry.gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with traffic policy Local whose endpoints are all on other nodes.",
            *("traffic_policy", _FAMILY),
        )
        self._dsr_peers = registry.gauge(
            "ebpflb_dsr_peers",
            "Other nodes with pods behind Services with DSR, counted once per family: those that "
            "accept DSR packets, and those that do not answer.",
            "state",
        )
        self._refused = registry.gauge(
            "ebpflb_addresses_refused",
            "External and load-balancer IPs that Services ask for and do not get.",
            "reason",
        )
        self.lacks = registry.gauge(
            "ebpflb_kernel_lacks",
            "1 for each missing kernel feature that has a workaround.",
            "feature",
        )
        version = registry.gauge("ebpflb_build_info", "Version as a label; always 1.", "version")
        version.labels(__version__).set(1)

    def show(self, totals: Totals, families: Iterable[str]) -> None:
        for name, gauge in self._plain.items():
            gauge.set(getattr(totals, name))
        self._source_errors.clear()
        for file in totals.source_errors:
            self._source_errors.labels(file).set(1)
        for reason, count in totals.addresses_refused.items():
            self._refused.labels(reason).set(count)
        for state in PEER_STATES:
            self._dsr_peers.labels(state).set(totals.dsr_peers.get(state, 0))
        for family in families:
            for policy in ("internal", "external"):
                ports = totals.no_local.get((policy, family), 0)
                self._no_local.labels(policy, family).set(ports)


class _KernelCollector(Collector):
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        return kernel_families(self._reading)


def _kernel_page(reading: Reading, wanted: TextFormat) -> Iterator[bytes]:
    registry = CollectorRegistry()
    registry.register(_KernelCollector(reading))
    traffic = chain(service_families(reading.ports), backend_families(reading.backends))
    yield wanted.write(registry)
    latency = latency_lines(reading.latency, wanted)
    yield from in_pieces(chain(exposition(traffic, wanted), latency))


class SharedPage:
    """Makes a new page if the last one is too old. For one thread at a time."""

    def __init__(
        self, make: Callable[[], Answer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self._make = make
        self._clock = clock
        self._page: Answer | None = None
        self._made = 0.0

    def __call__(self) -> Answer:
        """The page, at most one second old."""
        began = self._clock()
        if self._page is None or began - self._made >= FRESH_SECONDS:
            self._page = None
            self._page, self._made = self._make(), began
        return self._page

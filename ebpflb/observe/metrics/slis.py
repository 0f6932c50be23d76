# SPDX-License-Identifier: Apache-2.0
"""/metrics/slis and what it counts: the answers of the metrics port's own health check.

Names, labels and texts are those of k8s.io/component-base/metrics/prometheus/slis. The one check is
that of k8s.io/apiserver/pkg/server/healthz where there is no other: ping, of the type healthz.
"""

import time
from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from ebpflb.observe.http.server import Answer, Routes

_CHECK, _TYPE = "ping", "healthz"


def slis_routes(wall: Callable[[], float] = time.time) -> Routes:
    """/healthz, /healthz/ping and /metrics/slis. `wall`: seconds since 1970."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    last = Gauge(
        "kubernetes_healthcheck",
        "This metric records the result of a single healthcheck.",
        ["name", "type"],
        registry=registry,
    )
    total = Counter(
        "kubernetes_healthchecks_total",
        "This metric records the results of all healthcheck.",
        ["name", "type", "status"],
        registry=registry,
    )
    started = Gauge(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        registry=registry,
    )
    started.set(wall())

    def check() -> Answer:
        last.labels(_CHECK, _TYPE).set(1)
        total.labels(_CHECK, _TYPE, "success").inc()
        return Answer(b"ok")

    return {
        "/healthz": check,
        "/healthz/ping": lambda: Answer(b"ok"),
        "/metrics/slis": lambda: Answer(generate_latest(registry), CONTENT_TYPE_LATEST),
    }

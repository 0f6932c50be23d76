# SPDX-License-Identifier: Apache-2.0
"""The metrics port's other pages: /metrics/slis, /configz, /flagz and /statusz.

As in kube-proxy: the settings and the age of the agent in Kubernetes' forms, as text and as objects
of config.k8s.io (KEP-4827, KEP-4828), and how often the metrics port's own health check answered.
"""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

from ebpflb import __version__
from ebpflb.observe.http.server import Routes, form
from ebpflb.web.answers import JSON, Answer

_WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility "
    "guarantees and is for debugging purposes only."
)
_GROUP = "config.k8s.io"
# Of Kubernetes 1.35, and from 1.36 on.
_VERSIONS = ("v1alpha1", "v1beta1")
_MINUTE, _HOUR = 60, 3600


def debug_routes(
    settings: Mapping[str, object],
    others: Iterable[str],
    *,
    wall: Callable[[], float] = time.time,
) -> Routes:
    """`settings`: those in force, by option. `others`: other paths that this port serves.

    `wall`: seconds since 1970.
    """
    started = wall()
    paths = sorted([*others, "/configz", "/flagz", "/statusz"])
    flags = {name: _as_flag(value) for name, value in settings.items()}
    return {
        "/configz": lambda: Answer(json.dumps({"ebpflb": settings}).encode(), JSON),
        "/flagz": lambda: _page("flagz", [f"{name}={text}" for name, text in flags.items()]),
        "/statusz": lambda: _page("statusz", _status(started, wall(), paths)),
        **_objects("Flagz", lambda: {"flags": flags}),
        **_objects("Statusz", lambda: _status_fields(started, wall(), paths)),
    }


def _objects(kind: str, fields: Callable[[], Mapping[str, object]]) -> Routes:
    def answer(version: str) -> Answer:
        head = {"kind": kind, "apiVersion": f"{_GROUP}/{version}", "metadata": {"name": "ebpflb"}}
        return Answer(json.dumps({**head, **fields()}).encode(), JSON)

    return {
        f"/{kind.lower()} {form(f'{JSON};v={version};g={_GROUP};as={kind}')}": partial(
            answer, version
        )
        for version in _VERSIONS
    }


def _status_fields(started: float, now: float, paths: Iterable[str]) -> Mapping[str, object]:
    """Without goVersion and emulationVersion: they are of Kubernetes' own programs."""
    return {
        "startTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "uptimeSeconds": int(now - started),
        "binaryVersion": __version__,
        "paths": list(paths),
    }


def _page(name: str, lines: Iterable[str]) -> Answer:
    return Answer("\n".join(["", f"ebpflb {name}", _WARNING, "", *lines, ""]).encode())


def _as_flag(value: object) -> str:
    match value:
        case bool():
            return json.dumps(value)
        case list():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _status(started: float, now: float, paths: Iterable[str]) -> Iterable[str]:
    up = int(now - started)
    hours, minutes, seconds = up // _HOUR, up % _HOUR // _MINUTE, up % _MINUTE
    shown = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started))
    return (
        f"Started: {shown}",
        f"Up: {hours} hr {minutes:02} min {seconds:02} sec",
        f"Python version: {platform.python_version()}",
        f"Binary version: {__version__}",
        f"Paths: {' '.join(paths)}",
    )


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

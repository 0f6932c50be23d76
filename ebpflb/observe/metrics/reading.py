# SPDX-License-Identifier: Apache-2.0
"""What a scrape shows of the kernel, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ebpflb.model.flow import Counts


class PortLabels(NamedTuple):
    """The labels of a Service port. port: its name, or its number without one."""

    namespace: str
    service: str
    port: str
    protocol: str


class Endpoints(NamedTuple):
    """How many a Service port may use here. Terminating ones are neither local nor remote."""

    local: int = 0
    remote: int = 0
    terminating: int = 0


_NO_ENDPOINTS = Endpoints()


@dataclass(frozen=True, slots=True)
class PortReading:
    """One Service port. traffic: by frontend type, of types with traffic.

    oldest_seconds is None without connections, imbalance with too few.
    """

    labels: PortLabels
    traffic: Mapping[str, Counts] = field(default_factory=dict)
    endpoints: Endpoints = _NO_ENDPOINTS
    active: int = 0
    cross_node: int = 0
    cross_zone: int = 0
    oldest_seconds: float | None = None
    imbalance: float | None = None


@dataclass(frozen=True, slots=True)
class BackendReading:
    """One backend of a Service port. backend: IP:PORT. node, zone: "" if not known."""

    labels: PortLabels
    backend: str
    node: str
    zone: str
    traffic: Counts
    active: int


class Distribution(NamedTuple):
    """A histogram. buckets: (upper bound, count up to it), ascending; the last bound is inf."""

    buckets: Sequence[tuple[float, int]]
    sum: float


@dataclass(frozen=True, slots=True)
class Reading:
    """entries: used and maximum, by map. dropped: counts by (reason, interface).

    records: flow records that came, by event. lost: records that the kernel did not write, by
    reason. flows: by (metric, path).
    """

    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    flows: Mapping[tuple[str, str], Distribution] = field(default_factory=dict)
    ports: Sequence[PortReading] = ()
    backends: Sequence[BackendReading] = ()

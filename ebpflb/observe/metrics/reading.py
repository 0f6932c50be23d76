# SPDX-License-Identifier: Apache-2.0
"""What one look at the kernel found, as plain values: the metrics pages are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ebpflb.model.flow import Counts


class PortLabels(NamedTuple):
    """What tells one Service port from another. port: its name, or its number as text."""

    namespace: str
    service: str
    port: str
    protocol: str


class Endpoints(NamedTuple):
    """How many a Service port may use on this node; those that terminate are in the last alone."""

    local: int = 0
    remote: int = 0
    terminating: int = 0


_NO_ENDPOINTS = Endpoints()


@dataclass(frozen=True, slots=True)
class PortReading:
    """One Service port. traffic: by frontend type, of those types that something was counted for.

    oldest_seconds and imbalance are None where there is nothing to tell.
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
    """One backend of a Service port. backend: IP:PORT; node and zone are "" where not known."""

    labels: PortLabels
    backend: str
    node: str
    zone: str
    traffic: Counts
    active: int


class Distribution(NamedTuple):
    """A histogram. buckets: (upper bound, how many up to it), ascending, the last bound is inf."""

    buckets: Sequence[tuple[float, int]]
    sum: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What the kernel holds.

    entries: map -> (used, room for). dropped: (reason, interface) -> how often. records: event ->
    flow records that came. lost: reason -> those that were not written. flows: (metric, path) ->
    distribution.
    """

    entries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    flows: Mapping[tuple[str, str], Distribution] = field(default_factory=dict)
    ports: Sequence[PortReading] = ()
    backends: Sequence[BackendReading] = ()

# SPDX-License-Identifier: Apache-2.0
"""One look at what the Services carry: counters and backends, by Service port. From the maps alone.

Two looks make rates: service_rates.py.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.view.counters import read_backends, read_frontends
from ebpflb.dataplane.view.frontends import BackendView, FrontendView, view_frontends
from ebpflb.model.address import Family, Protocol, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServicePortName, TrafficPolicy

_NODE_ALONE = "ClusterIP"


class BackendKey(NamedTuple):
    """Where a backend is."""

    address: str
    port: int

    @property
    def family(self) -> Family:
        """A frontend has backends of its own family alone."""
        return Family.IPV6 if ":" in self.address else Family.IPV4


@dataclass(frozen=True, slots=True)
class BackendLook:
    """`offered`: it takes new connections. `active`: connections and flows that use it now."""

    local: bool
    terminating: bool
    offered: bool
    active: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class ServiceLook:
    """A Service port. `no_local`: a policy is Local, and no endpoint on this node serves it."""

    frontends: Mapping[FrontendKey, Counts]
    backends: Mapping[BackendKey, BackendLook]
    no_local: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """`seconds`: on a clock that only goes forward."""

    seconds: float
    services: Mapping[ServicePortName, ServiceLook]


def look(maps: MapSet, clock: Callable[[], float] = time.monotonic) -> Look:
    """What all Services carry. MapError."""
    seconds = clock()
    frontends = defaultdict[ServicePortName, dict[FrontendKey, Counts]](dict)
    for front in read_frontends(maps):
        frontends[front.service][front.key] = front.counts
    counted = _count_backends(maps)
    views = defaultdict[ServicePortName, list[FrontendView]](list)
    for view in view_frontends(maps):
        protocol = Protocol[view.protocol]
        name = ServicePortName(view.namespace, view.service, view.port_name, protocol)
        views[name].append(view)
    return Look(
        seconds,
        {
            name: ServiceLook(
                frontends[name],
                _backends(every, counted.get(name, {})),
                any(map(_has_no_local, every)),
            )
            for name, every in views.items()
        },
    )


def added(one: Counts, other: Counts) -> Counts:
    """Field by field."""
    return Counts(*map(sum, zip(one, other, strict=True)))


def _count_backends(maps: MapSet) -> Mapping[ServicePortName, Mapping[BackendKey, Counts]]:
    """An address that was a backend before, and still has flows of then, counts as one."""
    counted = defaultdict[ServicePortName, dict[BackendKey, Counts]](dict)
    for each in read_backends(maps):
        key = BackendKey(format_address(each.key.address), each.key.port)
        before = counted[each.service].get(key, Counts())
        counted[each.service][key] = added(before, each.counts)
    return counted


def _backends(
    views: list[FrontendView], counted: Mapping[BackendKey, Counts]
) -> Mapping[BackendKey, BackendLook]:
    found: dict[BackendKey, BackendLook] = {}
    offered = {view for each in views for view in _offered(each)}
    draining = {view for each in views for view in each.draining}
    for view in sorted(draining - offered, key=_place) + sorted(offered, key=_place):
        key = _place(view)
        active = view.active + (found[key].active if key in found else 0)
        counts = counted.get(key, Counts())
        is_offered = view in offered
        found[key] = BackendLook(view.local, view.terminating, is_offered, active, counts)
    return found


def _offered(view: FrontendView) -> Iterator[BackendView]:
    yield from view.local.backends
    yield from view.others.backends


def _place(view: BackendView) -> BackendKey:
    return BackendKey(view.address, view.port)


def _has_no_local(view: FrontendView) -> bool:
    """Whether somebody is refused or dropped although another node may have an endpoint."""
    if view.type == _NODE_ALONE:
        return view.internal_policy == TrafficPolicy.LOCAL and not view.local.backends
    return view.external_policy == TrafficPolicy.LOCAL and not view.others.backends

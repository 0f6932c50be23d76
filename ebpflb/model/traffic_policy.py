# SPDX-License-Identifier: Apache-2.0
"""Which endpoints of a Service port this node may use."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.endpoint import PortEndpoint
from ebpflb.model.node import Node
from ebpflb.model.service import ServicePort


class Hints(StrEnum):
    """Which kind of topology hints narrows down the ready endpoints."""

    NODE = "node"
    ZONE = "zone"
    NONE = "none"


class EndpointSets(NamedTuple):
    """The result of categorize(); both sets keep the order of the input."""

    cluster: tuple[PortEndpoint, ...]
    local: tuple[PortEndpoint, ...]
    has_any: bool


def categorize(
    service_port: ServicePort, endpoints: Sequence[PortEndpoint], node: Node
) -> EndpointSets:
    """Decide where new connections to a Service port may go from this node.

    An endpoint is usable if it is ready. If none is ready, those that still serve while
    terminating are usable instead; each set decides that on its own.

    - cluster: the usable endpoints of the whole cluster, narrowed by topology hints. Hints count
      only if every ready endpoint has them and one of them names this node (or, failing that,
      its zone); they never apply to terminating endpoints. Computed for internal policy Cluster
      and for every external frontend, even under external policy Local, which does not apply to
      sources on this node; empty for other ports.
    - local: the usable endpoints of this node, ignoring hints; terminating ones even while others
      are ready elsewhere. Empty for ports without traffic policy Local.
    - has_any: whether any node could use an endpoint. It decides what an empty set means: refuse
      (False: no node has one) or drop (True: only this node has none). It is never False while one
      of the sets is not empty.

    endpoints must contain each (address, port) once, see endpoints_of().
    """
    cluster: tuple[PortEndpoint, ...] = ()
    local: tuple[PortEndpoint, ...] = ()
    has_any = False
    if service_port.uses_cluster_endpoints:
        cluster = ready_near(endpoints, node)[1] or _last_resort(endpoints)
        has_any = bool(cluster)
    if service_port.uses_local_endpoints:
        here = [each for each in endpoints if each.endpoint.node_name == node.name]
        local = _ready(here) or _last_resort(here)
        has_any = has_usable(endpoints)
    return EndpointSets(cluster, local, has_any)


def has_usable(endpoints: Sequence[PortEndpoint]) -> bool:
    """Whether any node could use one."""
    return any(each.endpoint.ready or each.endpoint.is_last_resort for each in endpoints)


def ready_near(
    endpoints: Sequence[PortEndpoint], node: Node
) -> tuple[Hints, tuple[PortEndpoint, ...]]:
    """The ready endpoints for this node, and which hints narrowed them down."""
    ready = _ready(endpoints)
    by_node = _hinted(ready, node.name, attrgetter("endpoint.node_hints"))
    by_zone = _hinted(ready, node.zone, attrgetter("endpoint.zone_hints"))
    if by_node:
        return Hints.NODE, by_node
    return (Hints.ZONE, by_zone) if by_zone else (Hints.NONE, ready)


def _ready(endpoints: Sequence[PortEndpoint]) -> tuple[PortEndpoint, ...]:
    return tuple(each for each in endpoints if each.endpoint.ready)


def _last_resort(endpoints: Sequence[PortEndpoint]) -> tuple[PortEndpoint, ...]:
    return tuple(each for each in endpoints if each.endpoint.is_last_resort)


def _hinted(
    ready: tuple[PortEndpoint, ...],
    target: str,
    hints_of: Callable[[PortEndpoint], tuple[str, ...]],
) -> tuple[PortEndpoint, ...]:
    """The endpoints hinted for a node or zone; none if target is empty or any lacks hints."""
    if not target or not all(map(hints_of, ready)):
        return ()
    return tuple(each for each in ready if target in hints_of(each))

# SPDX-License-Identifier: Apache-2.0
"""healthCheckNodePort: the port where load balancers check this node for a Service."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.address import Family
from ebpflb.model.endpoint import EndpointSlice, endpoints_of
from ebpflb.model.node import Node
from ebpflb.model.service import Service, ServicePort


class HealthCheck(NamedTuple):
    """The port, and the number of ready endpoints on this node in each family of the Service."""

    port: int
    local_ready: Mapping[Family, int]


def health_check(
    service: Service, slices: Iterable[EndpointSlice], node: Node
) -> HealthCheck | None:
    """The health check of a Service with these slices; None for most Services.

    Counts the distinct addresses of ready endpoints on this node, over all ports. Endpoints that
    only serve while terminating do not count, although they still get traffic.
    """
    ports = [port for port in service.ports if port.health_check_node_port]
    if not ports:
        return None
    ordered = sorted(slices, key=attrgetter("name"))
    found: dict[Family, set[bytes]] = {port.family: set() for port in ports}
    for port in ports:
        found[port.family] |= _ready_here(port, ordered, node)
    counts = {family: len(addresses) for family, addresses in found.items()}
    return HealthCheck(ports[0].health_check_node_port, counts)


def _ready_here(port: ServicePort, slices: Iterable[EndpointSlice], node: Node) -> set[bytes]:
    endpoints = (each.endpoint for each in endpoints_of(port, slices))
    return {each.address for each in endpoints if each.ready and each.node_name == node.name}

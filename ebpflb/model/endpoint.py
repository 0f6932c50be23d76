# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices, and the endpoints of one Service port put together from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Address, Family, Protocol
from ebpflb.model.service import ServicePort


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a slice. Conditions that the API object leaves out have their defaults.

    pod: NAMESPACE/NAME, or "" for what is not a pod.
    """

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node_name: str | None = None
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    zone: str = ""
    pod: str = ""

    @property
    def is_last_resort(self) -> bool:
        """Not ready, but serving while it terminates: used only where nothing is ready."""
        return not self.ready and self.serving and self.terminating


class SlicePort(NamedTuple):
    """One port of a slice; belongs to the Service port of this name and protocol."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """An EndpointSlice of the Service `service` in its own namespace."""

    namespace: str
    name: str
    service: str
    family: Family
    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


class PortEndpoint(NamedTuple):
    """An endpoint together with its port number; address and port are its identity."""

    endpoint: Endpoint
    port: int


def endpoints_of(port: ServicePort, slices: Iterable[EndpointSlice]) -> tuple[PortEndpoint, ...]:
    """The endpoints of a Service port, each (address, port) once.

    Slices of the other family and slice ports of another name or protocol do not count. Of
    several entries for one (address, port) the first stays, unless a later one is not
    terminating: then a pod has taken over the address of one that is going away.
    """
    found: dict[tuple[Address, int], PortEndpoint] = {}
    for candidate in _candidates(port, slices):
        identity = (candidate.endpoint.address, candidate.port)
        if identity not in found or not candidate.endpoint.terminating:
            found[identity] = candidate
    return tuple(found.values())


def _candidates(
    service_port: ServicePort, slices: Iterable[EndpointSlice]
) -> Iterable[PortEndpoint]:
    for piece in slices:
        if piece.family is service_port.family:
            for port in piece.ports:
                if (port.name, port.protocol) == service_port.name[2:]:
                    yield from (PortEndpoint(endpoint, port.port) for endpoint in piece.endpoints)

# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices, and the endpoints of one Service port merged from them."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ebpflb.model.address import Address, Family, Protocol
from ebpflb.model.service import ServicePort


class Endpoint(NamedTuple):
    """One address of a slice. Conditions missing in the API object have their defaults.

    pod: NAMESPACE/NAME, or "" if it is not a pod.
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
        """Not ready, but serving while terminating: used only where nothing is ready."""
        return not self.ready and self.serving and self.terminating


# An Endpoint without its address and pod: many endpoints share it.
_Place = tuple[bool, bool, bool, str | None, tuple[str, ...], tuple[str, ...], str]
_ADDRESS_SIZE = 16


class PackedEndpoints(Collection[Endpoint]):
    """The endpoints of a slice in packed form; each access creates the object.

    As objects they would take up most of an agent's memory.
    """

    __slots__ = ("_addresses", "_places", "_pods")

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        found = tuple(endpoints)
        self._addresses = b"".join([each.address for each in found])
        self._places = tuple([_shared(each[1:-1]) for each in found])
        # Pod names contain no NUL.
        self._pods = "\0".join([each.pod for each in found])

    @property
    def addresses(self) -> Iterator[Address]:
        """The address of each endpoint."""
        for at in range(0, len(self._addresses), _ADDRESS_SIZE):
            yield Address(self._addresses[at : at + _ADDRESS_SIZE])

    @property
    def pods(self) -> list[str]:
        """The pod of each endpoint."""
        return self._pods.split("\0")

    def last_at(self, address: Address) -> Endpoint | None:
        """The last endpoint with this address."""
        at = self._addresses.rfind(address)
        while at > 0 and at % _ADDRESS_SIZE:
            at = self._addresses.rfind(address, 0, at + _ADDRESS_SIZE - 1)
        if at < 0:
            return None
        index = at // _ADDRESS_SIZE
        return Endpoint(address, *self._places[index], self.pods[index])

    def __iter__(self) -> Iterator[Endpoint]:
        for address, place, pod in zip(self.addresses, self._places, self.pods, strict=False):
            yield Endpoint(address, *place, pod)

    def __contains__(self, endpoint: object) -> bool:
        return endpoint in tuple(self)

    def __len__(self) -> int:
        return len(self._places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedEndpoints):
            return tuple(self) == other
        return self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    @property
    def _packed(self) -> tuple[bytes, tuple[_Place, ...], str]:
        return self._addresses, self._places, self._pods


NO_ENDPOINTS = PackedEndpoints()


@lru_cache(maxsize=8192)
def _shared(place: _Place) -> _Place:
    """Share one copy between equal endpoints."""
    return place


class SlicePort(NamedTuple):
    """One port of a slice; belongs to the Service port with this name and protocol."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """An EndpointSlice of the Service `service` in its own namespace.

    weight: of each of its endpoints, None without one.
    """

    namespace: str
    name: str
    service: str
    family: Family
    ports: tuple[SlicePort, ...] = ()
    endpoints: PackedEndpoints = NO_ENDPOINTS
    weight: int | None = None


class PortEndpoint(NamedTuple):
    """An endpoint together with its port number; address and port are its identity.

    weight: of its slice.
    """

    endpoint: Endpoint
    port: int
    weight: int | None = None


def endpoints_of(port: ServicePort, slices: Iterable[EndpointSlice]) -> tuple[PortEndpoint, ...]:
    """The endpoints of a Service port, each (address, port) once.

    Ignores slices of the other family and slice ports with another name or protocol. Of several
    entries for one (address, port) the first wins, unless a later one is not terminating: then a
    pod has taken over the address of one that is going away.
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
                    for endpoint in piece.endpoints:
                        yield PortEndpoint(endpoint, port.port, piece.weight)

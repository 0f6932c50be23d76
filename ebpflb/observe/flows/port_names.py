# SPDX-License-Identifier: Apache-2.0
"""Who the Services are that flow records speak of by numbers.

All of it is read from objects that nobody changes, in the thread that asks: the loop does not wait,
and it does nothing for this. What is gone stays known for a while, because records speak of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ebpflb.dataplane.layout.records import unpack_name
from ebpflb.model.address import Address
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import Endpoint, EndpointSlice
from ebpflb.model.service import Service, ServiceName, ServicePortName

Slices = tuple[EndpointSlice, ...]

_MOST_GONE = 1024


@dataclass(slots=True)
class KnownPort:
    """A Service port, the Service as it was last, and its endpoints by address."""

    name: ServicePortName
    service: Service | None = None
    slices: Slices = ()
    endpoints: dict[Address, Endpoint] = field(default_factory=dict)


class PortNames:
    """Service id -> what is known of that port. For one thread at a time."""

    def __init__(self, changes: Changes, name_of: Callable[[int], bytes | None]) -> None:
        """`name_of`: the value in lb_names."""
        self._changes = changes
        self._name_of = name_of
        self._known: dict[int, KnownPort] = {}
        self._room = 2 * _MOST_GONE

    def look_up(self, service: int, protocol: int) -> KnownPort | None:
        """As it is now, or as it was last; None if it was never known. MapError."""
        packed = self._name_of(service)
        if packed is None:
            return self._known.get(service)
        name = unpack_name(packed, protocol)
        known = self._known.get(service)
        if known is None or known.name != name:
            self._make_room()
            known = self._known[service] = KnownPort(name)
        owner = ServiceName(*name[:2])
        known.service = self._changes.service(owner) or known.service
        _follow(known, self._changes.slices(owner))
        return known

    def _make_room(self) -> None:
        """Forget those that are gone, but the last. Rare: their number has doubled since."""
        if len(self._known) < self._room:
            return
        gone = [service for service in self._known if self._name_of(service) is None]
        for service in gone[:-_MOST_GONE]:
            del self._known[service]
        self._room = 2 * max(len(self._known), _MOST_GONE)


def _follow(known: KnownPort, slices: Slices) -> None:
    if slices is known.slices:
        return
    known.slices = slices
    found: dict[Address, Endpoint] = {}
    for piece in slices:
        for endpoint in piece.endpoints:
            if endpoint.address not in found or not endpoint.terminating:
                found[endpoint.address] = endpoint
    gone = {} if len(known.endpoints) > 2 * len(found) + _MOST_GONE else known.endpoints
    # Replaced as a whole: nobody sees half of it.
    known.endpoints = {**gone, **found}

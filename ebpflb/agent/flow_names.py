# SPDX-License-Identifier: Apache-2.0
"""Who the Services and pods are that flow records speak of by numbers and addresses.

All of it is read from objects that nobody changes, in the thread that asks: the loop does not wait,
and it does nothing for this. What is gone stays known for a while, because records speak of it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ebpflb.dataplane.records import unpack_name
from ebpflb.model.address import Address
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import Endpoint, EndpointSlice
from ebpflb.model.service import Service, ServiceName, ServicePortName

Slices = tuple[EndpointSlice, ...]

_LOOK_SECONDS = 1.0
_MOST_GONE = 1024
_MOST_PORTS = 65536


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

    def look_up(self, service: int, protocol: int) -> KnownPort | None:
        """As it is now, or as it was last; None if it was never known. MapError."""
        packed = self._name_of(service)
        if packed is None:
            return self._known.get(service)
        name = unpack_name(packed, protocol)
        known = self._known.get(service)
        if known is None or known.name != name:
            if len(self._known) >= _MOST_PORTS:
                self._known.clear()
            known = self._known[service] = KnownPort(name)
        owner = ServiceName(*name[:2])
        known.service = self._changes.service(owner) or known.service
        _follow(known, self._changes.slices(owner))
        return known


class PodNames:
    """Address -> the pod that has it, or had it last, among the endpoints of all Services."""

    def __init__(
        self,
        every_slices: Callable[[], list[tuple[ServiceName, Slices]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds."""
        self._every_slices = every_slices
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[ServiceName, Slices] = {}
        self._pods: dict[Address, str] = {}
        self._looked = float("-inf")

    def pod(self, address: Address) -> str:
        """NAMESPACE/NAME, or an empty string. At most a second old."""
        if self._clock() - self._looked > _LOOK_SECONDS:
            with self._lock:
                self._look()
        return self._pods.get(address, "")

    def _look(self) -> None:
        now = self._every_slices()
        seen, self._seen = self._seen, dict(now)
        changed = [slices for name, slices in now if seen.get(name) is not slices]
        for slices in changed:
            self._pods.update(_pods(slices))
        if changed and len(self._pods) > 2 * sum(map(_size, self._seen.values())) + _MOST_GONE:
            every = (_pods(slices) for slices in self._seen.values())
            self._pods = {address: pod for pods in every for address, pod in pods.items()}
        self._looked = self._clock()


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


def _pods(slices: Slices) -> Mapping[Address, str]:
    return {
        endpoint.address: endpoint.pod
        for piece in slices
        for endpoint in piece.endpoints
        if endpoint.pod
    }


def _size(slices: Slices) -> int:
    return sum(len(piece.endpoints) for piece in slices)

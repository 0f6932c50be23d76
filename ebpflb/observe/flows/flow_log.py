# SPDX-License-Identifier: Apache-2.0
"""The last flow records of this node, with the names of the Services and endpoints in them.

Records are stored as the kernel wrote them, and decoded only for a reader. Their names are looked
up at once, because the Service or pod may be gone a moment later.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import byteorder

from ebpflb.dataplane.flows.records import StoredFlow, brief, decode, is_readable
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import unpack_name
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import Endpoint, EndpointSlice
from ebpflb.model.flow import Flow, flow_line
from ebpflb.model.pod import NamedPod
from ebpflb.model.service import Service, ServiceName, ServicePortName
from ebpflb.observe.flows.client_counts import ClientCounts
from ebpflb.observe.flows.history import FlowHistory
from ebpflb.observe.metrics.latency import ServiceLatency

Maps = Callable[[], MapSet | None]
"""Returns the maps in use, or None before there are any."""
PodOf = Callable[[Address], NamedPod]
"""Returns the pod that has an address, or had it last."""

_MOST_GONE = 1024
_NAMES = "lb_names"
_PROTOCOLS = frozenset(Protocol)


@dataclass(slots=True)
class KnownPort:
    """A Service port, the last version of its Service, and its endpoints, including past ones."""

    name: ServicePortName
    service: Service | None = None
    slices: tuple[EndpointSlice, ...] = ()
    endpoints: dict[Address, Endpoint] = field(default_factory=dict)

    def follow(self, slices: tuple[EndpointSlice, ...]) -> None:
        """Take the endpoints of new slices, and keep some of those that are gone."""
        if slices == self.slices:
            return
        self.slices = slices
        found: dict[Address, Endpoint] = {}
        for endpoint in (each for piece in slices for each in piece.endpoints):
            if endpoint.address not in found or not endpoint.terminating:
                found[endpoint.address] = endpoint
        gone = {} if len(self.endpoints) > 2 * len(found) + _MOST_GONE else self.endpoints
        # Replaced as a whole, so that other threads never see it half updated.
        self.endpoints = {**gone, **found}


class PortNames:
    """Names the Service ports that flow records refer to by number. For one thread at a time.

    It reads immutable model objects in the calling thread, so it does not delay the loop. A Service
    that is gone is kept for a while, because records still refer to it.
    """

    def __init__(self, changes: Changes, name_of: Callable[[int], bytes | None]) -> None:
        """`name_of`: returns the value in lb_names."""
        self._changes = changes
        self._name_of = name_of
        self._known: dict[int, KnownPort] = {}
        self._room = 2 * _MOST_GONE

    def look_up(self, service: int, protocol: int) -> KnownPort | None:
        """The port's current or last version; None if it was never known. MapError."""
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
        known.follow(self._changes.backups.known_slices(owner))
        return known

    def _make_room(self) -> None:
        """Forget all but the latest ports that are gone. Runs when their number has doubled."""
        if len(self._known) < self._room:
            return
        gone = [service for service in self._known if self._name_of(service) is None]
        for service in gone[:-_MOST_GONE]:
            del self._known[service]
        self._room = 2 * max(len(self._known), _MOST_GONE)


class FlowLog:
    """The history of a node's flows. Thread-safe; after a MapError names are missing."""

    def __init__(
        self,
        size: int,
        changes: Changes,
        maps: Maps,
        pod_of: PodOf,
        most_clients: int = 0,
        latency: ServiceLatency | None = None,
    ) -> None:
        """`size`: how many records to keep. `most_clients`: see ClientCounts."""
        self.history = FlowHistory[StoredFlow](size)
        # Number of records by event.
        self.counts: Counter[str] = Counter()
        self.clients = ClientCounts(most_clients, changes.service)
        self.unreadable = 0
        self._latency = latency
        self._node = changes.node.name
        self._maps = maps
        self._ports = PortNames(changes, self._name_of)
        self._pod_of = pod_of
        self._lock = threading.Lock()

    def accept(self, records: Sequence[bytes]) -> None:
        """Take records from the kernel's ring or from expiry, oldest first."""
        offset = time.time_ns() - time.monotonic_ns()
        with self._lock:
            readable = [record for record in records if is_readable(record)]
            self.unreadable += len(records) - len(readable)
            ports: dict[int, KnownPort | None] = {}
            stored = [self._stored(record, offset, ports) for record in readable]
            if self._latency:
                for number, each in enumerate(stored, self.history.end):
                    self._latency.count(number, each)
            self.history.add(stored)

    def _stored(self, record: bytes, offset: int, ports: dict[int, KnownPort | None]) -> StoredFlow:
        event, protocol, client, backend, service = brief(record)
        self.counts[event] += 1
        if service not in ports:
            is_known = service and protocol in _PROTOCOLS
            ports[service] = self._ports.look_up(service, protocol) if is_known else None
        port = ports[service]
        pods = self._pod_of(client), self._pod_of(backend)
        self.clients.count(pods[0], port.name if port else None, event)
        if port is None:
            return StoredFlow(record, offset, None, None, None, *pods)
        endpoint = port.endpoints.get(backend)
        return StoredFlow(record, offset, port.name, port.service, endpoint, *pods)

    def flow(self, number: int, stored: StoredFlow) -> Flow:
        """Decode a record; `number`: its number in the history."""
        return decode(number, stored, self._node)

    def line(self, number: int, stored: StoredFlow) -> bytes:
        """A record as a line of JSON."""
        return flow_line(self.flow(number, stored))

    def _name_of(self, service: int) -> bytes | None:
        maps = self._maps()
        if maps is None:
            return None
        try:
            return maps[_NAMES].lookup(service.to_bytes(4, byteorder))
        except MapError:
            return None

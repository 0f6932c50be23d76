# SPDX-License-Identifier: Apache-2.0
"""Every flow record of this node on its way from the kernel to those who want to see flows.

A record stays as it came until somebody asks. Only whom it names is looked up at once, because
that may be gone a moment later.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.flows.records import brief, decode, is_readable
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.flow import Flow, FlowNames
from ebpflb.model.service import Service, ServicePortName
from ebpflb.observe.flows.flow_json import flow_line
from ebpflb.observe.flows.history import FlowHistory
from ebpflb.observe.flows.port_names import KnownPort, PortNames

Maps = Callable[[], MapSet | None]
PodOf = Callable[[Address], str]
"""The pod that has an address or had it last, or an empty string."""

_NAMES = "lb_names"
_PROTOCOLS = frozenset(Protocol)


class Stored(NamedTuple):
    """A record as the kernel wrote it. since_1970: CLOCK_REALTIME over CLOCK_MONOTONIC, in ns."""

    record: bytes
    since_1970: int
    port: ServicePortName | None
    service: Service | None
    endpoint: Endpoint | None


class FlowLog:
    """The history of a node's flows. Any thread may call; a MapError leaves names out."""

    def __init__(self, size: int, changes: Changes, maps: Maps, pod_of: PodOf) -> None:
        """`size`: how many records are kept; `maps`: those in use, None before there are any."""
        self.history = FlowHistory[Stored](size)
        # Records by event, and those that could not be read.
        self.counts: Counter[str] = Counter()
        self.unreadable = 0
        self._node = changes.node.name
        self._maps = maps
        self._ports = PortNames(changes, self._name_of)
        self._pod_of = pod_of
        self._lock = threading.Lock()

    def accept(self, records: Sequence[bytes]) -> None:
        """Take records of the kernel, or of expiry, oldest first."""
        offset = time.time_ns() - time.monotonic_ns()
        with self._lock:
            readable = [record for record in records if is_readable(record)]
            self.unreadable += len(records) - len(readable)
            ports: dict[int, KnownPort | None] = {}
            self.history.add([self._stored(record, offset, ports) for record in readable])

    def _stored(self, record: bytes, offset: int, ports: dict[int, KnownPort | None]) -> Stored:
        event, protocol, backend, service = brief(record)
        self.counts[event] += 1
        if service not in ports:
            is_known = service and protocol in _PROTOCOLS
            ports[service] = self._ports.look_up(service, protocol) if is_known else None
        port = ports[service]
        if port is None:
            return Stored(record, offset, None, None, None)
        return Stored(record, offset, port.name, port.service, port.endpoints.get(backend))

    def describe(self, stored: Stored) -> tuple[Flow, FlowNames]:
        """What a record says, and whom it is about."""
        flow = decode(stored.record, stored.since_1970)
        endpoint = stored.endpoint
        is_local = endpoint is not None and endpoint.node_name == self._node
        pod = self._pod_of(flow.client.address) if flow.client else ""
        return flow, FlowNames(stored.port, stored.service, endpoint, pod, is_local)

    def line(self, number: int, stored: Stored) -> bytes:
        """A record as a line of JSON; `number`: that in the history."""
        return flow_line(number, *self.describe(stored))

    def _name_of(self, service: int) -> bytes | None:
        maps = self._maps()
        if maps is None:
            return None
        try:
            return maps[_NAMES].lookup(service.to_bytes(4, byteorder))
        except MapError:
            return None

# SPDX-License-Identifier: Apache-2.0
"""The path of flow records: read from the kernel's ring, logged, exported, queried."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ebpflb.config.settings import Settings
from ebpflb.dataplane.flows.records import (
    FlowRing,
    StoredFlow,
    client_namespace,
    is_readable,
    with_client,
)
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.view.counts import grown
from ebpflb.errors import MapError
from ebpflb.model.address import Address, family_of
from ebpflb.model.changes import Changes
from ebpflb.observe.flows.export import FlowExport, sink_for
from ebpflb.observe.flows.flow_log import FlowLog, Maps, PodOf
from ebpflb.observe.flows.kept_flows import KeptFlows
from ebpflb.observe.flows.past_rates import PastRatesQueries
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import Route
from ebpflb.observe.metrics.kernel import FlowCollector, KeptCounts
from ebpflb.observe.metrics.latency import ServiceLatency
from ebpflb.observe.metrics.reader import read_lost

_log = logging.getLogger("ebpflb.agent")

POLL_SECONDS = 0.2
_MAP = "lb_flows"
# How many more times to read a replaced ring: for some seconds.
_LAST_READS = 25
# Maximum reads of one ring in a row, so that a flood does not starve the other rings.
_MOST_READS = 16
_UNKNOWN = Address(bytes(16))

AddressesIn = Callable[[int], Collection[Address]]
"""Externally reachable addresses of the network namespace with a cookie; empty if unknown."""


class FlowPipeline:
    """Create it before the agent's loop, start it before the loop runs, stop it afterwards."""

    def __init__(
        self,
        settings: Settings,
        changes: Changes,
        maps: Maps,
        pod_of: PodOf,
        addresses_in: AddressesIn,
    ) -> None:
        self._changes = changes
        self.latency = ServiceLatency() if settings.metrics_latency else None
        clients = settings.metrics_clients
        self._log = FlowLog(settings.flow_history, changes, maps, pod_of, clients, self.latency)
        self._clients = SocketClients(addresses_in, pod_of)
        self._reader = RingReader(maps, self.accept)
        self._export: FlowExport[StoredFlow] | None = None
        if target := settings.flow_export:
            sink = sink_for(target, settings.flow_export_max_bytes, settings.flow_export_files)
            self._export = FlowExport(self._log.history, self._log.line, sink, target)
        self._kept: KeptFlows | None = None
        self._keeping: FlowExport[StoredFlow] | None = None
        if room := settings.flow_history_bytes:
            directory = settings.flow_history_directory
            self._kept = KeptFlows(directory, room // 2)
            history, line = self._log.history, self._log.line
            lost = LostInKernel(maps).since_last
            self._keeping = FlowExport(history, line, self._kept, str(directory), lost)
        self.past_rates = PastRatesQueries(self._log, self._kept, settings.flow_sample)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of records read, by event."""
        return self._log.counts

    def accept(self, records: Sequence[bytes]) -> None:
        """Take records, including those not from the kernel's ring. Thread-safe."""
        self._log.accept([self._clients.with_address(record) for record in records])

    def collector(self) -> FlowCollector:
        """The counters of lost records, and of records by client, for /metrics."""
        export = self._export
        return FlowCollector(
            lambda: self._log.unreadable,
            lambda: export.lost if export else 0,
            self._kept_counts,
            self._log.clients.families,
        )

    def _kept_counts(self) -> KeptCounts:
        if self._kept is None or self._keeping is None:
            return KeptCounts()
        return KeptCounts(self._keeping.lost, self._kept.damaged)

    @property
    def log(self) -> FlowLog:
        """The history. For any thread."""
        return self._log

    @property
    def kept(self) -> KeptFlows | None:
        """The records of the last day, unless none are kept. For any thread."""
        return self._kept

    @property
    def routes(self) -> Mapping[str, Route]:
        """What can be asked about flows."""
        return query_routes(self._changes, self._log, self._kept)

    def start(self) -> None:
        """Start with the next record."""
        for each in self._exports:
            each.start()
        self._reader.start()

    def stop(self) -> None:
        """Stop the threads; call it only after start()."""
        self._reader.stop()
        for each in self._exports:
            each.stop()

    @property
    def _exports(self) -> Iterator[FlowExport[StoredFlow]]:
        return (each for each in (self._export, self._keeping) if each)


class LostInKernel:
    """Counts the records that the kernel could not write. For one thread."""

    def __init__(self, maps: Maps) -> None:
        self._maps = maps
        self._counted: int | None = None

    def since_last(self) -> int:
        """How many more there are since the last call; the first one begins."""
        maps = self._maps()
        if maps is None:
            return 0
        try:
            now = sum(read_lost(maps).values())
        except MapError:
            return 0
        before, self._counted = self._counted, now
        return 0 if before is None else grown((before,), (now,))[0]


class RingReader:
    """A thread that reads the kernel's ring of flow records five times a second.

    It polls; the kernel does not wake it. Records that do not fit into the ring between two reads
    are lost, and counted there. New maps may come with a new ring; programs of the old generation
    may write to the old one for a little longer.
    """

    def __init__(self, maps: Maps, accept: Callable[[Sequence[bytes]], None]) -> None:
        """`accept` receives the records, oldest first."""
        self._maps = maps
        self._accept = accept
        self._source: object = None
        # The current ring comes last.
        self._rings: list[FlowRing] = []
        self._reads_left = 0
        self._failed = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-flows", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Unread records stay in the ring for the next agent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Read what is in the rings now. An error is logged once."""
        try:
            self._follow_maps()
            for ring in self._rings:
                self._drain(ring)
        except MapError as error:
            text = str(error)
            if text != self._failed:
                _log.error("cannot read flow records: %s; retrying", text)
            self._failed = text
        else:
            self._failed = ""

    def _follow_maps(self) -> None:
        maps = self._maps()
        source = maps.get(_MAP) if maps else None
        if source is not self._source and isinstance(source, KernelMap):
            self._rings.append(FlowRing(source))
            self._source = source
            self._reads_left = _LAST_READS
        elif len(self._rings) > 1:
            self._reads_left -= 1
            if self._reads_left <= 0:
                *old, current = self._rings
                self._rings = [current]
                for ring in old:
                    ring.close()

    def _drain(self, ring: FlowRing) -> None:
        for _ in range(_MOST_READS):
            records = ring.read()
            if not records:
                return
            self._accept(records)


class SocketClients:
    """Fills in pod addresses in records of sockets that had none yet: refused ones, and UDP.

    The socket hooks know such a client only by its network namespace. Thread-safe.
    """

    def __init__(self, addresses_in: AddressesIn, pod_of: PodOf) -> None:
        self._addresses_in = addresses_in
        self._pod_of = pod_of

    def with_address(self, record: bytes) -> bytes:
        """The record with its client's address, if it names a namespace; zero if that is gone."""
        namespace = client_namespace(record) if is_readable(record) else None
        if namespace is None:
            return record
        known = self._addresses_in(namespace.cookie)
        own = [each for each in known if family_of(each) is namespace.family]
        # Prefer the API's pod IP: a pod may also be on networks that the API does not know.
        address = min(own, key=lambda each: (not self._pod_of(each).pod, each), default=_UNKNOWN)
        return with_client(record, address)

# SPDX-License-Identifier: Apache-2.0
"""What an agent runs for those who ask about flows: reader, history, export and query socket."""

from collections.abc import Mapping, Sequence

from ebpflb.config.settings import Settings
from ebpflb.model.changes import Changes
from ebpflb.observe.flows.export import FlowExport, sink_for
from ebpflb.observe.flows.flow_log import FlowLog, Maps, PodOf, Stored
from ebpflb.observe.flows.flow_reader import FlowReader
from ebpflb.observe.flows.query_routes import query_routes
from ebpflb.observe.flows.service_routes import Tell, service_routes
from ebpflb.observe.http.query_socket import QueryServer
from ebpflb.observe.metrics.kernel import FlowCollector


class FlowParts:
    """Made before the agent's loop, started before it runs, stopped after it."""

    def __init__(self, settings: Settings, changes: Changes, maps: Maps, pod_of: PodOf) -> None:
        """`maps`: those in use, None before there are any."""
        self._changes = changes
        self._socket = settings.query_socket
        self._log = FlowLog(settings.flow_history, changes, maps, pod_of)
        self._reader = FlowReader(maps, self._log.accept)
        self._export = _export(settings, self._log)
        self._server: QueryServer | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Records that were read, by event."""
        return self._log.counts

    def accept(self, records: Sequence[bytes]) -> None:
        """Take records that did not come through the kernel's ring; any thread may."""
        self._log.accept(records)

    def collector(self) -> FlowCollector:
        """For /metrics: the records that nobody gets to see."""
        export = self._export
        return FlowCollector(lambda: self._log.unreadable, lambda: export.lost if export else 0)

    def start(self, tell: Tell) -> None:
        """Begin with what comes from now on. `tell`: gives an inquiry to the loop."""
        if self._export:
            self._export.start()
        self._reader.start()
        if self._socket:
            routes = {
                **query_routes(self._changes, self._log),
                **service_routes(tell, self._changes),
            }
            self._server = QueryServer(self._socket, routes)
            self._server.start()

    def stop(self) -> None:
        """End the threads; after start() only."""
        if self._server:
            self._server.stop()
        self._reader.stop()
        if self._export:
            self._export.stop()


def _export(settings: Settings, flows: FlowLog) -> FlowExport[Stored] | None:
    target = settings.flow_export
    if not target:
        return None
    sink = sink_for(target, settings.flow_export_max_bytes, settings.flow_export_files)
    return FlowExport(flows.history, flows.line, sink, target)

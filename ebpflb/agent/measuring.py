# SPDX-License-Identifier: Apache-2.0
"""The parts that measure what the kernel does, put together."""

from collections.abc import Mapping

from ebpflb.agent.dataplane import NodeDataplane
from ebpflb.config.settings import Settings
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.page import Metrics, SharedPage
from ebpflb.observe.metrics.programming_latency import FirstConnections, FirstConnectionsThread
from ebpflb.observe.metrics.reader import MapReader, OptionalSeries


class Measuring:
    """Of one agent. `page` is /metrics."""

    def __init__(
        self,
        settings: Settings,
        kernel: NodeDataplane,
        locations: EndpointLocations,
        records: Mapping[str, int],
    ) -> None:
        """`records`: of flows so far, by event."""
        series = OptionalSeries(settings.metrics_services, settings.metrics_backends)
        self._reader = MapReader(kernel, locations, series, records)
        self.metrics = Metrics(kernel.families, self._reader.read)
        self.page = SharedPage(self.metrics.page)
        first = FirstConnections(self.metrics.first_connection)
        self._first = FirstConnectionsThread(first, lambda: kernel.maps, kernel.written)

    def begin(self) -> None:
        """All is in force: from now on it is known since when something is there."""
        self._reader.begin()
        self._first.start()

    def stop(self) -> None:
        """End the thread."""
        self._first.stop()

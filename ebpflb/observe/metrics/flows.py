# SPDX-License-Identifier: Apache-2.0
"""What of flow records did not get to those who want to see them, besides what the kernel lost."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class FlowCollector(Collector):
    """Asks for the numbers at each scrape."""

    def __init__(self, unreadable: Callable[[], int], not_exported: Callable[[], int]) -> None:
        self._unreadable = unreadable
        self._not_exported = not_exported

    def describe(self) -> Iterable[Metric]:
        """Spare the registry a call just to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        yield CounterMetricFamily(
            "ebpflb_flow_records_unreadable",
            "Flow records of another version of the programs, which were skipped.",
            self._unreadable(),
        )
        yield CounterMetricFamily(
            "ebpflb_flow_export_lost",
            "Flow records that could not be written to --flow-export.",
            self._not_exported(),
        )

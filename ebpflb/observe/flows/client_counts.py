# SPDX-License-Identifier: Apache-2.0
"""Flow records by client and Service for metrics, with a limit on the number of series."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from ebpflb.model.pod import NamedPod
from ebpflb.model.service import ServiceName, ServicePortName

_NAME = "ebpflb_client_flow_records"
_TEXT = "Flow records by client and Service. source_workload: KIND/NAME, empty if unknown."
_LABELS = ("source_namespace", "source_workload", "namespace", "service")
# No real workload has this name: it would have a kind.
_OTHERS = ("", "other", "", "")


class ClientCounts:
    """One thread counts, any thread may collect.

    A client's workload and a Service get a series of their own as long as there are fewer than
    `most` such pairs; all others are counted together. Series end with their Service.
    """

    def __init__(self, most: int, exists: Callable[[ServiceName], object]) -> None:
        """`most`: 0 counts nothing. `exists`: whether there is a Service with that name."""
        self._most = most
        self._exists = exists
        self._counts: dict[tuple[str, ...], Counter[str]] = {}

    def count(self, client: NamedPod, port: ServicePortName | None, event: str) -> None:
        if not self._most:
            return
        service = port[:2] if port else ("", "")
        pair = (client.pod.partition("/")[0], client.workload, *service)
        counts = self._counts.get(pair)
        if counts is None:
            if len(self._counts) >= self._most:
                pair = _OTHERS
            counts = self._counts.setdefault(pair, Counter())
        counts[event] += 1

    def families(self) -> Iterator[Metric]:
        """Nothing if nothing is counted."""
        if self._most:
            family = CounterMetricFamily(_NAME, _TEXT, labels=(*_LABELS, "event"))
            for pair, counts in list(self._counts.items()):
                service = ServiceName(*pair[2:])
                if service.name and not self._exists(service):
                    del self._counts[pair]
                    continue
                for event, count in list(counts.items()):
                    family.add_metric((*pair, event), count)
            yield family

# SPDX-License-Identifier: Apache-2.0
"""What Services carried at a time in the past, by flow records.

A connection counts when it ends, with all its bytes: records do not tell more.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any

from ebpflb.config.moment import WINDOW_SECONDS, moment, span, window
from ebpflb.dataplane.layout.enums import DropReason, word
from ebpflb.model.compact import compact
from ebpflb.model.compact.past_rates import PastRates, RecordedTime
from ebpflb.model.compact.rates import BACKEND_SUMS, SUMS, PortName, SocketText
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import (
    ANSWERS_NOBODY,
    MOST_CLIENTS,
    NO_ENDPOINT,
    NO_LOCAL_ENDPOINT,
    REFUSES,
    BackendRate,
    Flow,
    FlowBackend,
    LostFlows,
    ServiceRate,
    more_over_limit,
    over_limit,
)
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.kept_flows import KeptFlows, recorded
from ebpflb.observe.http.query_socket import HttpQueryError, Query, parameters, parsed
from ebpflb.web.answers import TEXT, Answer
from ebpflb.words.connections import BACKEND_REFUSED, DROPPED, END, FAILED, REFUSED

# Less than who asks waits.
_PATIENCE_SECONDS = 5.0
_ALL = 1 << 63
_TROUBLES = {
    word(DropReason.LB_DROP_NO_ENDPOINT): NO_ENDPOINT,
    word(DropReason.LB_DROP_NO_LOCAL_ENDPOINT): NO_LOCAL_ENDPOINT,
    word(DropReason.LB_DROP_BACKENDS_FULL): "endpoints full",
}
_OF_CLIENTS = frozenset(map(word, (DropReason.LB_DROP_CLIENT_OPEN, DropReason.LB_DROP_CLIENT_NEW)))
_COUNTED = (END, REFUSED, DROPPED)


@dataclass(slots=True)
class _BackendRecords:
    """end: what the last record says of it. refusals: connections that it refused itself."""

    end: FlowBackend
    counts: Counter[str] = field(default_factory=Counter)
    refusals: int = 0

    @property
    def trouble(self) -> str:
        if self.counts["failed"] < self.counts["connections"]:
            return ""
        return REFUSES if self.refusals else ANSWERS_NOBODY


class _PortRecords:
    """The records of one Service port."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._backends: dict[SocketText, _BackendRecords] = {}
        self._troubles: set[str] = set()
        # Who was refused or dropped for which limit.
        self._limited: Counter[tuple[str, str]] = Counter()

    def add(self, flow: Flow) -> None:
        if flow.event in (REFUSED, DROPPED):
            self._counts[flow.event] += 1
            if trouble := _TROUBLES.get(flow.reason):
                self._troubles.add(trouble)
            if flow.client and flow.reason in _OF_CLIENTS:
                name = flow.client.pod or flow.client.address
                self._limited[name, flow.reason] += 1
            return
        counts = {
            "connections": 1,
            "failed": int(flow.verdict == FAILED),
            "retransmits": flow.retransmits or 0,
            "original_bytes": flow.bytes.original if flow.bytes else 0,
            "reply_bytes": flow.bytes.reply if flow.bytes else 0,
        }
        self._counts.update(counts)
        if end := flow.backend:
            found = self._backends.setdefault((end.address, end.port), _BackendRecords(end))
            found.end = end
            found.counts.update(counts)
            found.refusals += flow.ended == BACKEND_REFUSED

    def rate(self, name: PortName, seconds: float) -> ServiceRate:
        backends = tuple(_backend_rate(each, seconds) for each in self._backends.values())
        far = sum(each.connections for each in backends if not each.local)
        every = sum(each.connections for each in backends)
        troubles = [f"{each.name} {each.trouble}" for each in backends if each.trouble]
        return ServiceRate(
            *name,
            **_per_second(self._counts, SUMS, seconds),
            endpoints=None,
            largest_share=None,
            even_share=None,
            cross_node_share=far / every if every else None,
            troubles=(*sorted(self._troubles), *troubles, *self._limits_met()),
            backends=backends,
        )

    def _limits_met(self) -> Iterator[str]:
        """Those clients first for whom it was most often."""
        found = sorted(self._limited.items(), key=lambda each: (-each[1], each[0]))
        for (client, reason), times in found[:MOST_CLIENTS]:
            yield over_limit(client, reason, times)
        if more := len(found[MOST_CLIENTS:]):
            yield more_over_limit(more)


def _backend_rate(found: _BackendRecords, seconds: float) -> BackendRate:
    end = found.end
    return BackendRate(
        end.address,
        end.port,
        local=bool(end.local),
        terminating=False,
        offered=True,
        **_per_second(found.counts, BACKEND_SUMS, seconds),
        share=None,
        trouble=found.trouble,
        ejection=EjectionState.UNWATCHED.word,
        pod=end.pod,
    )


def _per_second(counts: Mapping[str, int], names: tuple[str, ...], seconds: float) -> Any:
    return {name: counts[name] / seconds for name in names} | {"active": None}


class PastRatesQueries:
    """Answers what Services carried, for one at a time, since a day has many records.

    Thread-safe.
    """

    def __init__(self, log: FlowLog, kept: KeptFlows | None, sample: int) -> None:
        """`sample`: one flow in so many is recorded; see RecordedTime."""
        self._log = log
        self._kept = kept
        self._sample = sample
        self._turn = threading.Lock()

    def answer(self, query: Query) -> Answer:
        """PastRates, compact, of the `window` that ends `at` a moment(). HttpQueryError."""
        given = parameters(query, "at", "window", "namespace")
        at = parsed("at", given, partial(moment, now=time.time_ns()))
        if at is None:
            raise HttpQueryError("at: say when")
        seconds = parsed("window", given, window) or WINDOW_SECONDS
        if not self._turn.acquire(timeout=_PATIENCE_SECONDS):
            text = "the agent answers others: try again"
            raise HttpQueryError(text, HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            found = self.rates(at, seconds, given.get("namespace", ""))
        finally:
            self._turn.release()
        return Answer(compact(found).encode(), TEXT)

    def rates(self, at: int, seconds: float, namespace: str = "") -> PastRates:
        """`at`: nanoseconds since 1970. `namespace`: of the Services; "" for all."""
        begin, end = span(at, seconds)
        found = RecordedTime(begin=begin, end=end, sample=self._sample, oldest=self._oldest())
        found.lost = 0 if self._kept else None
        ports: dict[PortName, _PortRecords] = {}
        for each in recorded(self._log, self._kept, begin, end):
            if isinstance(each, LostFlows):
                # Any of them may be from then.
                found.lost = (found.lost or 0) + each.lost
            elif each.time < end and each.event in _COUNTED and (name := _name(each, namespace)):
                found.count += 1
                ports.setdefault(name, _PortRecords()).add(each)
        return PastRates(found, [ports[name].rate(name, seconds) for name in sorted(ports)])

    def _oldest(self) -> str:
        """The time of the first record."""
        kept = self._kept.flows("", _ALL) if self._kept else ()
        batch = self._log.history.since(0)
        recent = (self._log.flow(at, each) for at, each in enumerate(batch.records, batch.first))
        return next((each.time for each in chain(kept, recent)), "")


def _name(flow: Flow, namespace: str) -> PortName | None:
    """None if it is not of a Service there."""
    service = flow.service
    if service is None or namespace not in ("", service.namespace):
        return None
    return PortName(service.namespace, service.name, service.port, flow.protocol)

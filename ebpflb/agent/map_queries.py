# SPDX-License-Identifier: Apache-2.0
"""Answers what the commands read from the pinned maps, without a process of its own for each."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from itertools import islice

from ebpflb.config.values import boolean, duration
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.view.connections import open_connections, open_sockets
from ebpflb.dataplane.view.frontend_rows import frontend_row
from ebpflb.dataplane.view.rates import TrafficSampler, rates
from ebpflb.dataplane.view.snapshot import read_frontends, read_snapshot
from ebpflb.errors import EbpflbError
from ebpflb.model.address import format_address, parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.compact import compact
from ebpflb.model.compact.rates import port_row
from ebpflb.model.connection import (
    OpenConnection,
    WantedConnections,
    connection_line,
    with_names,
)
from ebpflb.model.flow import ServiceRate
from ebpflb.model.pod import NamedPod
from ebpflb.model.service import ServiceName
from ebpflb.observe.flows.flow_log import PodOf
from ebpflb.observe.flows.queries import pod_names
from ebpflb.observe.http.query_socket import (
    JSON_LINES,
    HttpQueryError,
    Query,
    Route,
    parameters,
    parsed,
)
from ebpflb.web.answers import TEXT, Answer, StreamedAnswer

_SAMPLE_SECONDS, _LONGEST_SAMPLE = 1.0, 30.0
_PIECE_LINES = 256
# Less than who asks waits.
_PATIENCE_SECONDS = 10.0


class MapQueries:
    """Rows of frontends and rates as the commands print them with --compact, and connections.

    It reads the maps for one at a time, to leave the loop its share. For any thread.
    """

    def __init__(
        self,
        maps: Callable[[], MapSet | None],
        changes: Changes,
        past_rates: Callable[[Query], Answer],
        pod_of: PodOf,
    ) -> None:
        """`past_rates`: answers for a time in the past, of which the maps know nothing.

        `pod_of`: for backends that are endpoints no more.
        """
        self._maps = maps
        self._changes = changes
        self._past_rates = past_rates
        self._pod_of = pod_of
        self._turn = threading.Lock()
        self.routes: Mapping[str, Route] = {
            "/v1/services": self._services,
            "/v1/top": self._top,
            "/v1/connections": self._connections,
        }

    def _services(self, query: Query) -> Answer:
        given = parameters(query, "namespace", "service")
        namespace = given.get("namespace", "")
        wanted = parsed("service", given, _service_name)
        with self._reading() as maps:
            rows = [
                frontend_row(each)
                for each in read_frontends(maps, wanted)
                if namespace in ("", each.frontend.service.namespace)
            ]
            return Answer(compact(rows).encode(), TEXT)

    def _top(self, query: Query) -> Answer:
        if query.parameters.get("at"):
            return self._past_rates(query)
        given = parameters(query, "interval", "namespace")
        interval = parsed("interval", given, _sample_length) or _SAMPLE_SECONDS
        namespace = given.get("namespace", "")
        with self._reading() as maps:
            sampler = TrafficSampler(maps)
            before = sampler.sample()
        time.sleep(interval)
        with self._reading():
            found = rates(before, sampler.sample(), pod_names(self._changes))
            own = (each for each in found if namespace in ("", each.namespace))
            rows = [port_row(self._with_removed(each)) for each in own]
            return Answer(compact(rows).encode(), TEXT)

    def _with_removed(self, rate: ServiceRate) -> ServiceRate:
        """With the names of removed pods."""
        backends = (
            replace(each, pod=self._last_at(each.address).pod)
            if each.removed and not each.pod
            else each
            for each in rate.backends
        )
        return replace(rate, backends=tuple(backends))

    def _last_at(self, address: str) -> NamedPod:
        return self._pod_of(parse_address(address))

    def _connections(self, query: Query) -> StreamedAnswer:
        given = parameters(query, "namespace", "service", "from", "older", "backend-gone")
        wanted = WantedConnections(
            given.get("namespace", ""),
            str(parsed("service", given, _service_name) or ""),
            parsed("from", given, _client) or "",
            bool(parsed("backend-gone", given, boolean)),
            parsed("older", given, duration) or 0.0,
        )
        with self._reading() as maps:
            try:
                sockets = open_sockets()
            except OSError as error:
                raise EbpflbError(f"cannot list the sockets: {error.strerror}") from error
            found = open_connections(maps, read_snapshot(maps), sockets)
            named = self._named(found)
        return StreamedAnswer(self._pieces(filter(wanted.have, named)), JSON_LINES)

    def _named(self, found: Iterator[OpenConnection]) -> Iterator[OpenConnection]:
        names = pod_names(self._changes)
        pods = self._changes.node_pods()
        workloads = {f"{pod.namespace}/{pod.name}": pod.workload for pod in pods}
        for each in found:
            named = with_names(each, names, lambda pod: workloads.get(pod, ""))
            if named.removed and not named.backend.pod:
                named.backend.pod, named.backend.workload = self._last_at(named.backend.address)
            yield named

    def _pieces(self, found: Iterator[OpenConnection]) -> Iterator[bytes]:
        while True:
            with self._turn:
                piece = b"".join(map(connection_line, islice(found, _PIECE_LINES)))
            if not piece:
                return
            yield piece

    @contextmanager
    def _reading(self) -> Iterator[MapSet]:
        """HttpQueryError if the turn does not come in time."""
        maps = self._maps()
        if maps is None:
            raise _not_now("the agent has no maps yet")
        if not self._turn.acquire(timeout=_PATIENCE_SECONDS):
            raise _not_now("the agent answers others")
        try:
            yield maps
        finally:
            self._turn.release()


def _not_now(why: str) -> HttpQueryError:
    return HttpQueryError(f"{why}: try again", HTTPStatus.SERVICE_UNAVAILABLE)


def _sample_length(value: object) -> float:
    seconds = duration(value)
    if not 0 < seconds <= _LONGEST_SAMPLE:
        raise ValueError(f"want more than 0 s, and at most {_LONGEST_SAMPLE:g} s")
    return seconds


def _service_name(value: object) -> ServiceName:
    namespace, _, name = str(value).partition("/")
    if not (namespace and name):
        raise ValueError("want NAMESPACE/NAME")
    return ServiceName(namespace, name)


def _client(value: object) -> str:
    text = str(value)
    try:
        return text if "/" in text else format_address(parse_address(text))
    except ValueError as error:
        raise ValueError("want an address, or NAMESPACE/NAME of a pod") from error

# SPDX-License-Identifier: Apache-2.0
"""Queries on the query socket: flows and names, and how other threads ask the model.

What is in force can be read from the maps without an agent.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from ebpflb.config.moment import moment, rfc3339_ns
from ebpflb.config.values import Number, SomeOf, boolean, near, nearest
from ebpflb.dataplane.flows.records import StoredFlow
from ebpflb.errors import EbpflbError
from ebpflb.model.address import Address, format_address, parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.flow import Flow, FlowClient, LostFlows, flow_line, time_of_id
from ebpflb.model.pod import names_by_address
from ebpflb.model.service import ServiceName
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.history import NumberedRecords
from ebpflb.observe.flows.kept_flows import KeptFlows
from ebpflb.observe.http.query_socket import (
    JSON_LINES,
    HttpQueryError,
    Query,
    Route,
    json_reply,
    parsed,
)
from ebpflb.web.answers import StreamedAnswer
from ebpflb.words.connections import FLOW_EVENTS, VERDICTS

PARAMETERS = (
    *("limit", "follow", "since", "until", "namespace"),
    *("service", "services-of", "from", "to", "verdict", "event", "id"),
)


@dataclass(frozen=True, slots=True)
class EndFilter:
    """One end of a flow: an address, or a pod, by name if the record has one. pod: may be ""."""

    addresses: Collection[str]
    pod: str = ""

    def matches(self, end: FlowClient) -> bool:
        """`end`: a client or a backend. Its address may belong to another pod by now."""
        return end.pod == self.pod if end.pod and self.pod else end.address in self.addresses


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Conditions that must all hold; None means any.

    earliest, latest: as the time of a flow, or "".
    namespace: of the Service, or of a pod at either end. services_of: of the Service alone.
    """

    namespace: str | None = None
    services_of: str | None = None
    service: ServiceName | None = None
    client: EndFilter | None = None
    target: EndFilter | None = None
    verdicts: Collection[str] | None = None
    events: Collection[str] | None = None
    id: str | None = None
    earliest: str = ""
    latest: str = ""

    def matches(self, flow: Flow) -> bool:
        return (
            flow.time >= self.earliest
            and (not self.latest or flow.time <= self.latest)
            and self.id in (None, flow.id)
            and _is_one(flow.event, self.events)
            and _is_one(flow.verdict, self.verdicts)
            and (self.client is None or _matches(self.client, flow.client))
            and self._has_target(flow)
            and (self.service is None or self.service == _service(flow))
            and (self.namespace is None or self.namespace in _namespaces(flow))
            and (self.services_of is None or self.services_of == _namespace(flow))
        )

    def _has_target(self, flow: Flow) -> bool:
        wanted = self.target
        return (
            wanted is None
            or flow.frontend.address in wanted.addresses
            or _matches(wanted, flow.backend)
        )


def parse_filter(
    parameters: Mapping[str, str],
    service: Callable[[str], ServiceName],
    end: Callable[[str], EndFilter],
    now: int,
) -> FlowFilter:
    """The filter for a query's parameters. HttpQueryError says what is wrong.

    `service` and `end` look names up; `now`: nanoseconds since 1970.
    """
    for name in parameters:
        if name not in PARAMETERS:
            raise HttpQueryError(f"unknown parameter {name!r}{nearest(name, PARAMETERS)}")
    given = {name: value for name, value in parameters.items() if value}
    since, until = (parsed(name, given, partial(moment, now=now)) for name in ("since", "until"))
    if "id" in given:
        since = until = parsed("id", given, time_of_id)
    return FlowFilter(
        namespace=given.get("namespace"),
        services_of=given.get("services-of"),
        service=service(given["service"]) if "service" in given else None,
        client=end(given["from"]) if "from" in given else None,
        target=end(given["to"]) if "to" in given else None,
        verdicts=parsed("verdict", given, SomeOf(VERDICTS)),
        events=parsed("event", given, SomeOf(FLOW_EVENTS)),
        id=given.get("id"),
        earliest=_time(since),
        latest=_time(until),
    )


def _time(when: int | None) -> str:
    """As that of a flow; "" for none."""
    return "" if when is None else rfc3339_ns(when)


def _is_one(value: object, wanted: Collection[object] | None) -> bool:
    return wanted is None or value in wanted


def _matches(wanted: EndFilter, end: FlowClient | None) -> bool:
    return end is not None and wanted.matches(end)


def _namespaces(flow: Flow) -> Iterator[str]:
    if flow.service:
        yield flow.service.namespace
    for end in (flow.client, flow.backend):
        if end:
            yield end.pod.partition("/")[0]


def _namespace(flow: Flow) -> str | None:
    return flow.service.namespace if flow.service else None


def _service(flow: Flow) -> ServiceName | None:
    return ServiceName(flow.service.namespace, flow.service.name) if flow.service else None


Result = TypeVar("Result")

# A start that compiles the programs and fills the maps keeps the loop busy for seconds.
PATIENCE_SECONDS = 15.0
# How soon a stream notices that its client is gone.
_LOOK_SECONDS = 1.0
_MOST = 999_999_999
_PIECE_LINES = 256


class ModelQuery(Generic[Result]):
    """A query on the model, which only the loop may read; the requesting thread waits."""

    def __init__(self, query: Callable[[Changes], Result]) -> None:
        self._query = query
        self._result: Future[Result] = Future()

    def answer(self, changes: Changes | None) -> None:
        """Called by the loop. None: the source has not listed everything yet."""
        try:
            if changes is None:
                raise EbpflbError("the agent has not read all objects yet: try again")  # noqa: TRY301  the asker's
            self._result.set_result(self._query(changes))
        except Exception as error:  # noqa: BLE001  any error belongs to the thread that asked
            self._result.set_exception(error)

    def wait(self) -> Result:
        """Called by the requesting thread. EbpflbError if no answer comes in time."""
        try:
            return self._result.result(PATIENCE_SECONDS)
        except TimeoutError as error:
            raise EbpflbError("the agent is busy: try again") from error


AskLoop = Callable[[ModelQuery[Any]], None]
"""Passes a query to the agent's loop."""


def ask_model(ask_loop: AskLoop, query: Callable[[Changes], Result]) -> Result:
    """The result of a query, in any thread but the loop's. EbpflbError."""
    asked = ModelQuery(query)
    ask_loop(asked)
    return asked.wait()


def query_routes(
    changes: Changes, flows: FlowLog, kept: KeptFlows | None = None
) -> Mapping[str, Route]:
    """Prefixes of paths, and the function that answers each, in any thread."""
    return {
        "/v1/flows": FlowQueries(flows, changes, kept).answer,
        "/v1/names": lambda query: json_reply(_names(query, changes)),
    }


def _names(query: Query, changes: Changes) -> Mapping[str, object]:
    """Every Service, the addresses of every pod known here, and the workloads of this node's."""
    if query.path or query.parameters:
        raise HttpQueryError("/v1/names takes no parameters")
    pods = pods_by_name(changes)
    return {
        "pods": {name: sorted(map(format_address, pods[name])) for name in sorted(pods)},
        "workloads": {
            f"{pod.namespace}/{pod.name}": pod.workload
            for pod in changes.node_pods()
            if pod.workload
        },
        "services": sorted(map(str, changes.names())),
    }


class FlowQueries:
    """Answers /v1/flows: the latest flows and those to come, as JSON lines. Thread-safe."""

    def __init__(self, log: FlowLog, changes: Changes, kept: KeptFlows | None = None) -> None:
        """`kept`: the older ones, which only a query with a time reads."""
        self._log = log
        self._changes = changes
        self._kept = kept

    def answer(self, query: Query) -> StreamedAnswer:
        """The last flows (limit, since), oldest first; with follow=1 also new ones."""
        if query.path:
            raise HttpQueryError("/v1/flows has nothing below it", HTTPStatus.NOT_FOUND)
        given = query.parameters
        older = self._kept if given.get("since") or given.get("id") else None
        service, end = partial(self._service, older), partial(self._end, older)
        wanted = parse_filter(given, service, end, time.time_ns())
        limit = parsed("limit", given, Number(0, _MOST))
        follow = parsed("follow", given, boolean)
        return StreamedAnswer(self._lines(wanted, limit, follow=bool(follow)), JSON_LINES)

    def _lines(self, wanted: FlowFilter, limit: int | None, *, follow: bool) -> Iterator[bytes]:
        batch = self._log.history.since(0)
        last = self._last(batch, wanted, limit)
        yield from _pieces(self._with_older(last, batch.first, wanted, limit))
        while follow:
            batch = self._log.history.since(batch.end, _LOOK_SECONDS)
            lost = [flow_line(LostFlows(lost=batch.lost))] if batch.lost else []
            yield from _pieces(chain(lost, self._matching(batch, wanted)))

    def _with_older(
        self, last: Iterator[bytes], first: int, wanted: FlowFilter, limit: int | None
    ) -> Iterator[bytes]:
        """`last`: the lines of the records from number `first` on."""
        if not (self._kept and wanted.earliest):
            return last
        kept = self._kept.flows(wanted.earliest, first, wanted.latest)
        lines = chain((flow_line(flow) for flow in kept if wanted.matches(flow)), last)
        return lines if limit is None else iter(deque(lines, maxlen=limit))

    def _last(
        self, batch: NumberedRecords[StoredFlow], wanted: FlowFilter, limit: int | None
    ) -> Iterator[bytes]:
        if limit is None:
            return self._matching(batch, wanted)
        newest_first = zip(range(batch.end - 1, -1, -1), reversed(batch.records), strict=False)
        lines = filter(None, (self._line(at, each, wanted) for at, each in newest_first))
        return reversed(list(islice(lines, limit)))

    def _matching(self, batch: NumberedRecords[StoredFlow], wanted: FlowFilter) -> Iterator[bytes]:
        numbered = enumerate(batch.records, batch.first)
        return filter(None, (self._line(at, each, wanted) for at, each in numbered))

    def _line(self, at: int, stored: StoredFlow, wanted: FlowFilter) -> bytes:
        flow = self._log.flow(at, stored)
        return flow_line(flow) if wanted.matches(flow) else b""

    def _service(self, older: KeptFlows | None, text: str) -> ServiceName:
        namespace, slash, name = text.partition("/")
        found = ServiceName(namespace, name)
        if not slash or not (self._changes.service(found) or self._was_seen(found, older)):
            raise _unknown("Service", text, map(str, self._changes.names()))
        return found

    def _was_seen(self, name: ServiceName, older: KeptFlows | None) -> bool:
        """Whether any recorded flow has this Service, which may be gone."""
        batch = self._log.history.since(0)
        if any(each.port is not None and each.port[:2] == name for each in batch.records):
            return True
        kept = older.flows("", batch.first) if older else ()
        return any(_service(flow) == name for flow in kept)

    def _end(self, older: KeptFlows | None, text: str) -> EndFilter:
        if "/" not in text:
            try:
                return EndFilter((format_address(parse_address(text)),))
            except ValueError as error:
                raise HttpQueryError(f"{error}, nor a pod: want NAMESPACE/NAME") from error
        pods = pods_by_name(self._changes)
        if text not in pods and not self._had_pod(text, older):
            raise _unknown("pod", text, pods)
        return EndFilter([*map(format_address, pods.get(text, ()))], text)

    def _had_pod(self, name: str, older: KeptFlows | None) -> bool:
        """Whether any recorded flow has this pod, which may be gone."""
        batch = self._log.history.since(0)
        if any(name in (each.client.pod, each.backend.pod) for each in batch.records):
            return True
        kept = older.flows("", batch.first) if older else ()
        ends = chain.from_iterable((flow.client, flow.backend) for flow in kept)
        return any(end is not None and end.pod == name for end in ends)


def pods_by_name(changes: Changes) -> Mapping[str, Collection[Address]]:
    """NAMESPACE/NAME of this node's pods, and of all endpoints that are pods -> their addresses."""
    pods = defaultdict[str, set[Address]](set)
    for pod in changes.node_pods():
        pods[f"{pod.namespace}/{pod.name}"].update(pod.addresses)
    for _, slices in changes.all_slices():
        for piece in slices:
            for endpoint in piece.endpoints:
                if endpoint.pod:
                    pods[endpoint.pod].add(endpoint.address)
    return pods


def pod_names(changes: Changes) -> Mapping[str, str]:
    """See names_by_address(); of the pods that are known here."""
    pods = pods_by_name(changes).items()
    return names_by_address({name: map(format_address, each) for name, each in pods})


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into pieces of limited size; yields at least one piece, which may be empty."""
    rest = iter(lines)
    yield b"".join(islice(rest, _PIECE_LINES))
    while piece := b"".join(islice(rest, _PIECE_LINES)):
        yield piece


def _unknown(kind: str, text: str, known: Iterable[str]) -> HttpQueryError:
    names = list(known)
    hint = near(text, names) or f" ({len(names)} are known)"
    return HttpQueryError(f"unknown {kind} {text!r}{hint}", HTTPStatus.NOT_FOUND)

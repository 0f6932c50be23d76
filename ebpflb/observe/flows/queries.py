# SPDX-License-Identifier: Apache-2.0
"""/v1/flows: the last flows, and those to come, as lines of JSON."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import chain, islice
from typing import TypeVar

from ebpflb.config.values import boolean, near, number
from ebpflb.model.address import Address, parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.service import ServiceName
from ebpflb.observe.flows.flow_filter import FlowFilter, parse_filter
from ebpflb.observe.flows.flow_json import flow_line, lost_line
from ebpflb.observe.flows.flow_log import FlowLog, Stored
from ebpflb.observe.flows.history import Batch
from ebpflb.observe.http.query_socket import JSON_LINES, Query, QueryError, StreamedReply

Value = TypeVar("Value")

# How soon it is seen that a client that waits for flows has gone.
_LOOK_SECONDS = 1.0
_MOST = 999_999_999
_PIECE_LINES = 256
# Names that a misspelt one is compared with: some tenths of a second.


class FlowQueries:
    """Answers for any thread."""

    def __init__(self, log: FlowLog, changes: Changes) -> None:
        self._log = log
        self._changes = changes

    def answer(self, question: Query) -> StreamedReply:
        """The last flows (limit, since), oldest first; with follow=1 the next ones as they come."""
        if question.path:
            raise QueryError("/v1/flows has nothing below it", HTTPStatus.NOT_FOUND)
        given = question.parameters
        wanted = parse_filter(given, self._service, self._addresses, time.time_ns())
        limit = _parsed("limit", given, number(0, _MOST))
        follow = _parsed("follow", given, boolean)
        return StreamedReply(self._lines(wanted, limit, follow=bool(follow)), JSON_LINES)

    def _lines(self, wanted: FlowFilter, limit: int | None, *, follow: bool) -> Iterator[bytes]:
        batch = self._log.history.since(0)
        yield from _pieces(self._last(batch, wanted, limit))
        while follow:
            batch = self._log.history.since(batch.end, _LOOK_SECONDS)
            lost = [lost_line(batch.lost)] if batch.lost else []
            yield from _pieces(chain(lost, self._matching(batch, wanted)))

    def _last(self, batch: Batch[Stored], wanted: FlowFilter, limit: int | None) -> Iterator[bytes]:
        if limit is None:
            return self._matching(batch, wanted)
        lines: list[bytes] = []
        for back, stored in enumerate(reversed(batch.records), 1):
            if len(lines) >= limit:
                break
            if line := self._line(batch.end - back, stored, wanted):
                lines.append(line)
        return reversed(lines)

    def _matching(self, batch: Batch[Stored], wanted: FlowFilter) -> Iterator[bytes]:
        for at, stored in enumerate(batch.records, batch.first):
            if line := self._line(at, stored, wanted):
                yield line

    def _line(self, at: int, stored: Stored, wanted: FlowFilter) -> bytes:
        flow, names = self._log.describe(stored)
        return flow_line(at, flow, names) if wanted.wants(flow, names) else b""

    def _service(self, text: str) -> ServiceName:
        namespace, slash, name = text.partition("/")
        found = ServiceName(namespace, name)
        if not slash or not (self._changes.service(found) or self._was_seen(found)):
            raise _unknown("Service", text, map(str, self._changes.names()))
        return found

    def _was_seen(self, name: ServiceName) -> bool:
        records = self._log.history.since(0).records
        return any(each.port is not None and each.port[:2] == name for each in records)

    def _addresses(self, text: str) -> Collection[Address]:
        if "/" not in text:
            try:
                return (parse_address(text),)
            except ValueError as error:
                raise QueryError(f"{error}, nor a pod: want NAMESPACE/NAME") from error
        pods = pods_by_name(self._changes)
        if text not in pods:
            raise _unknown("pod", text, pods)
        return pods[text]


def pods_by_name(changes: Changes) -> Mapping[str, Collection[Address]]:
    """NAMESPACE/NAME of every pod that is an endpoint of a Service -> its addresses."""
    pods = defaultdict[str, set[Address]](set)
    for _, slices in changes.every_slices():
        for piece in slices:
            for endpoint in piece.endpoints:
                if endpoint.pod:
                    pods[endpoint.pod].add(endpoint.address)
    return pods


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines put together, but never all of a long history; one piece at least, maybe empty."""
    rest = iter(lines)
    yield b"".join(islice(rest, _PIECE_LINES))
    while piece := b"".join(islice(rest, _PIECE_LINES)):
        yield piece


def _parsed(name: str, given: Mapping[str, str], parse: Callable[[object], Value]) -> Value | None:
    if name not in given:
        return None
    try:
        return parse(given[name])
    except ValueError as error:
        raise QueryError(f"{name}: {given[name]!r}: {error}") from error


def _unknown(kind: str, text: str, known: Iterable[str]) -> QueryError:
    names = list(known)
    hint = near(text, names) or f" ({len(names)} are known)"
    return QueryError(f"unknown {kind} {text!r}{hint}", HTTPStatus.NOT_FOUND)

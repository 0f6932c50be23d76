# SPDX-License-Identifier: Apache-2.0
"""What a watcher of flows gets: what it may see of what happens."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from math import inf

from msgspec.structs import replace

from ebpflb.errors import ConfigError
from ebpflb.model.flow import Flow, FollowedNode, LostFlows, watch_line
from ebpflb.relay.answers import Answers, is_wanted
from ebpflb.relay.following import Watched
from ebpflb.relay.identity import Viewer
from ebpflb.relay.redaction import NamespaceSight
from ebpflb.relay.requests import ApiError, ListRequest
from ebpflb.relay.wanted import normal

# How soon a watcher learns that the relay is there, and the relay of new nodes and rights.
_LIFE_SECONDS, _SIGHT_SECONDS = 15.0, 30.0


@dataclass(frozen=True, slots=True)
class FlowWatches:
    """Thread-safe. watch: see FlowHub."""

    answers: Answers
    watch: Callable[[], Iterator[list[Watched]]]

    def lines(self, request: ListRequest, viewer: Viewer) -> Iterator[bytes]:
        """Lines of JSON as flows happen, b"" now and then, and an empty line as a sign of life.

        ApiError, ClusterError, before the first piece.
        """
        sight = self.answers.sight(request.namespace, viewer)
        try:
            request = normal(request)
            is_possible = not sight or self.answers.may_ask(request, sight)
        except ConfigError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        if not is_possible:
            raise ApiError(HTTPStatus.BAD_REQUEST, "you may not see the flows of this pod")
        self.answers.agents(request.nodes, sight)
        batches = self.watch()
        first = next(batches)
        return self._pieces(chain([first], batches), request, viewer)

    def _pieces(
        self, batches: Iterable[list[Watched]], request: ListRequest, viewer: Viewer
    ) -> Iterator[bytes]:
        sight = self.answers.sight(request.namespace, viewer)
        looked, told = time.monotonic(), -inf
        for batch in batches:
            now = time.monotonic()
            if now - looked > _SIGHT_SECONDS:
                sight, looked = self.answers.sight(request.namespace, viewer), now
            piece = _lines(batch, request, sight)
            if not piece and now - told > _LIFE_SECONDS:
                piece = b"\n"
            if piece:
                told = now
            yield piece


def _lines(batch: Iterable[Watched], request: ListRequest, sight: NamespaceSight | None) -> bytes:
    return b"".join(
        watch_line(shown)
        for each in batch
        if not request.nodes or each.node in ("", *request.nodes)
        if (shown := _watched(each, request.parameters, sight))
    )


def _watched(
    found: Watched, given: Mapping[str, str], sight: NamespaceSight | None
) -> Watched | None:
    if isinstance(found, FollowedNode):
        return replace(found, why=sight.text(found.why)) if sight else found
    if isinstance(found, LostFlows):
        return found
    shown = sight.flow(found) if sight else found
    return shown if shown and _is_chosen(shown, given) and is_wanted(shown, given) else None


def _is_chosen(flow: Flow, given: Mapping[str, str]) -> bool:
    """By what agents look for themselves where they are asked for a list."""
    service = f"{flow.service.namespace}/{flow.service.name}" if flow.service else ""
    return (
        given.get("service", service) == service
        and _is_one(flow.verdict, given.get("verdict"))
        and _is_one(flow.event, given.get("event"))
    )


def _is_one(word: str, wanted: str | None) -> bool:
    return wanted is None or word in wanted.split(",")

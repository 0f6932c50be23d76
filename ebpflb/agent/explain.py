# SPDX-License-Identifier: Apache-2.0
"""Answers /v1/explain: what `ebpflb explain` asks, where both the model and the maps are."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ebpflb.agent.explain_past import explain_past
from ebpflb.config.moment import rfc3339_ns
from ebpflb.dataplane.explain.answer import explain
from ebpflb.dataplane.explain.question import ExplainQuestion, Explanation
from ebpflb.dataplane.explain.reach import last_failures
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.errors import ConfigError, QueryError
from ebpflb.model.address import SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.flow import Flow
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.kept_flows import KeptFlows, recorded
from ebpflb.observe.flows.queries import AskLoop, ask_model
from ebpflb.observe.http.query_socket import HttpQueryError, Query, Route
from ebpflb.observe.served.then import PastServices
from ebpflb.web.answers import JSON, Answer
from ebpflb.words.connections import END

Result = TypeVar("Result")

PATH = "/v1/explain"
# Older failures may have been fixed.
_LATELY = 5 * 60 * 1_000_000_000
_PATIENCE_SECONDS = 5.0


class KeptPast(NamedTuple):
    """What is kept of the last day."""

    services: PastServices
    flows: KeptFlows


class Explaining:
    """Explains one connection at a time, to leave the loop its share. For any thread."""

    def __init__(
        self,
        root: Path,
        maps: Callable[[], MapSet | None],
        ask_loop: AskLoop,
        flows: FlowLog,
        past: KeptPast | None = None,
    ) -> None:
        """`root`: of the pins of these maps. `past`: None if nothing is kept."""
        self._root = root
        self._maps = maps
        self._ask_loop = ask_loop
        self._flows = flows
        self._past = past
        self._turn = threading.Lock()
        self.routes: Mapping[str, Route] = {PATH: self._answer}

    def ask(self, query: Callable[[Changes], Result]) -> Result:
        """See Model."""
        return ask_model(self._ask_loop, query)

    def failures(self, service: str, protocol: str) -> Mapping[SocketAddress, str]:
        """See Model; of the last minutes."""
        earliest = time.time_ns() - _LATELY
        batch = self._flows.history.since(0)
        lately = (
            self._flows.flow(number, each)
            for number, each in enumerate(batch.records, batch.first)
            if each.port and "/".join(each.port[:2]) == service and each.time >= earliest
        )
        return last_failures(
            flow for flow in lately if (flow.event, flow.protocol) == (END, protocol)
        )

    def _answer(self, query: Query) -> Answer:
        question = _question(query)
        if question.pins not in ("", str(self._root)):
            raise HttpQueryError(f"the agent that answers has its pins at {self._root}")
        if not self._turn.acquire(timeout=_PATIENCE_SECONDS):
            raise _not_now("the agent explains another connection: try again")
        try:
            found = self._explained(question)
        except (ConfigError, QueryError) as error:
            raise HttpQueryError(str(error), HTTPStatus.UNPROCESSABLE_ENTITY) from error
        finally:
            self._turn.release()
        return Answer(msgspec.json.encode(found) + b"\n", JSON)

    def _explained(self, question: ExplainQuestion) -> Explanation:
        if question.at:
            return self._past_explained(question, time.time_ns())
        maps = self._maps()
        if maps is None:
            raise _not_now("the agent has no maps yet: try again")
        return explain(maps, self._root, question, self)

    def _past_explained(self, question: ExplainQuestion, now: int) -> Explanation:
        if self._past is None:
            raise ConfigError("this node keeps nothing of the past: --flow-history-bytes is 0")
        moment = question.moment(now)
        if moment > now:
            raise ConfigError(f"{question.at} is in the future")
        pods = self.ask(lambda changes: changes.node_pods())
        return explain_past(
            self._past.services,
            question,
            moment,
            {address for pod in pods for address in pod.addresses},
            partial(self._past_failures, self._past.flows, moment),
        )

    def _past_failures(
        self, kept: KeptFlows, moment: int, service: str, protocol: str
    ) -> Mapping[SocketAddress, str]:
        """Of the minutes before a moment, in nanoseconds since 1970."""
        found = recorded(self._flows, kept, rfc3339_ns(moment - _LATELY), rfc3339_ns(moment))
        return last_failures(
            flow
            for flow in found
            if isinstance(flow, Flow)
            and (flow.event, flow.protocol) == (END, protocol)
            and flow.service
            and f"{flow.service.namespace}/{flow.service.name}" == service
        )


# Known before threads use it: see _decoder() of source/typed.py.
msgspec.json.Decoder(ExplainQuestion)


def _not_now(why: str) -> HttpQueryError:
    return HttpQueryError(why, HTTPStatus.SERVICE_UNAVAILABLE)


def _question(query: Query) -> ExplainQuestion:
    if query.path:
        raise HttpQueryError(f"{PATH} has nothing below it")
    try:
        return msgspec.convert(dict(query.parameters), ExplainQuestion, strict=False)
    except msgspec.ValidationError as error:
        raise HttpQueryError(
            f"want {PATH}?from=ADDRESS&to=NAMESPACE/NAME&port=80: {error}"
        ) from error

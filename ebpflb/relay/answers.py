# SPDX-License-Identifier: Apache-2.0
"""The answer to each request: asked of the agents, merged as the plugin does, then redacted."""

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from msgspec import to_builtins

from ebpflb.cli.explain_words import AskedConnection, parse_target
from ebpflb.cli.tables.past import PastWindow
from ebpflb.config.moment import WINDOW_SECONDS, moment, rfc3339_ns, window
from ebpflb.config.values import Number, boolean, duration
from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import Answering, AskedAgents
from ebpflb.kubectl.connections import opened
from ebpflb.kubectl.explain import explained
from ebpflb.kubectl.flows import recent
from ebpflb.kubectl.services import FrontendOfCluster, merged, plain_frontends
from ebpflb.kubectl.top import recorded, sampled
from ebpflb.model.compact.past_rates import PastRates
from ebpflb.model.connection import OpenConnection, WantedConnections
from ebpflb.model.flow import Flow, FlowClient, LostFlows
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.explaining import check_explanation, own_explanations
from ebpflb.relay.identity import Viewer
from ebpflb.relay.redaction import ELSEWHERE, NamespaceSight
from ebpflb.relay.requests import ApiError, Document, ListRequest, list_document
from ebpflb.relay.rights import Attributes
from ebpflb.relay.shared import Shared
from ebpflb.relay.wanted import ENDS, normal
from ebpflb.words.observe import CONNECTIONS, EXPLANATIONS, FLOWS, FRONTENDS, RATES

_log = logging.getLogger("ebpflb.relay")

Found = TypeVar("Found")

MOST_ITEMS = 20_000
_SAMPLE_SECONDS, _LONGEST_SAMPLE = 2.0, 10.0
# How many agents are asked at once, each of which may send as much as an answer may have. Rates
# are short, and an agent waits for as long as its sample takes.
_AT_ONCE, _SAMPLES_AT_ONCE = 16, 256
_PODS, _NODES = Attributes("list", "", "pods"), Attributes("list", "", "nodes")
_FULL_NAME = re.compile(r"(?<![\w./-])([a-z0-9-]+)/[a-z0-9.-]+(?![\w/])")


class Merged(NamedTuple):
    """What the agents say together. failures: what went wrong -> on which nodes."""

    items: list[Any]
    failures: Mapping[str, set[str]]


@dataclass(frozen=True)
class Answers:
    """Thread-safe. Who asks for the same at the same time shares what the agents say."""

    cluster: ObservedCluster
    executor: Answering
    shared: Shared[Merged] = field(default_factory=Shared)

    def document(self, request: ListRequest, viewer: Viewer) -> Document:
        """ApiError, ClusterError."""
        sight = self.sight(request.namespace, viewer)
        try:
            request = normal(request)
            if sight and not self.may_ask(request, sight):
                return list_document(request.resource, [], {})
            agents = self.agents(request.nodes, sight)
            found = self.shared.get(request.key, lambda: self._merged(request, agents))
        except ConfigError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except ClusterError as error:
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, told(str(error), sight)) from error
        items = _ITEMS[request.resource](found.items, request, sight)
        return list_document(request.resource, items, _told_failures(found.failures, sight))

    def sight(self, namespace: str, viewer: Viewer) -> NamespaceSight | None:
        """None for all namespaces: of those nothing is left out. ApiError."""
        if not namespace:
            return None
        try:
            addresses = self.cluster.addresses.get()
        except ClusterError as error:
            raise _unknown_rights(error) from error
        may = partial(self._may, viewer)
        return NamespaceSight(
            namespace, lambda of: may(_PODS._replace(namespace=of)), may(_NODES), addresses
        )

    def _may(self, viewer: Viewer, what: Attributes) -> bool:
        try:
            return self.cluster.rights.may(viewer, what)
        except ClusterError as error:
            raise _unknown_rights(error) from error

    def may_ask(self, request: ListRequest, sight: NamespaceSight) -> bool:
        """Whether there may be anything that the viewer may see. ApiError if it asks elsewhere."""
        given, namespace = request.parameters, request.namespace
        if service := given.get("service", ""):
            _require_own(service.partition("/")[0], namespace)
        if request.resource == EXPLANATIONS:
            check_explanation(self.cluster, given, sight)
            return True
        return all(_may_be_seen(given.get(name, ""), sight) for name in ENDS)

    def _merged(self, request: ListRequest, agents: list[RemoteAgent]) -> Merged:
        most = _SAMPLES_AT_ONCE if request.resource == RATES else _AT_ONCE
        asking = AskedAgents(self.cluster.access, agents, self.executor, most)
        items = list(_ASKED[request.resource](asking, request))
        return Merged(items, asking.failures)

    def agents(self, nodes: tuple[str, ...], sight: NamespaceSight | None) -> list[RemoteAgent]:
        """Those that are to be asked; all without `nodes`. ApiError."""
        try:
            agents = self.cluster.agents.get()
        except ClusterError as error:
            _log.warning("cannot find the agents: %s", error)
            # The error names namespaces.
            text = "the relay finds no agents: ask who runs the cluster" if sight else str(error)
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, text) from error
        if unknown := set(nodes) - {each.node for each in agents}:
            text = f"node {', '.join(sorted(unknown))}: not found"
            raise ApiError(HTTPStatus.BAD_REQUEST, text)
        return [each for each in agents if not nodes or each.node in nodes]


def _asked_frontends(asking: AskedAgents, request: ListRequest) -> Iterable[Any]:
    return merged(asking, {**request.parameters, "namespace": request.namespace})


def _asked_rates(asking: AskedAgents, request: ListRequest) -> Iterable[Any]:
    if "at" in request.parameters:
        return [recorded(asking, _window(request.parameters), request.namespace)]
    interval = _SAMPLE_SECONDS
    if text := request.parameters.get("interval"):
        interval = _check("interval", text, duration)
        if not 0 < interval <= _LONGEST_SAMPLE:
            raise ApiError(
                HTTPStatus.BAD_REQUEST, f"interval: want up to {_LONGEST_SAMPLE:g} seconds"
            )
    return sampled(asking, interval, request.namespace)


def _window(given: Mapping[str, str]) -> PastWindow:
    at = _check("at", given["at"], partial(moment, now=time.time_ns()))
    seconds = _check("window", given["window"], window) if "window" in given else WINDOW_SECONDS
    return PastWindow(at, seconds)


def _asked_flows(asking: AskedAgents, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    if limit := given.get("limit"):
        _check("limit", limit, Number(0, MOST_ITEMS))
    bound = {"limit": str(MOST_ITEMS + 1)}
    return _bounded(recent(asking, {**bound, **given, "services-of": request.namespace}))


def _asked_connections(asking: AskedAgents, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    wanted = WantedConnections(
        request.namespace,
        given.get("service", ""),
        given.get("from", ""),
        "backend-gone" in given and _check("backend-gone", given["backend-gone"], boolean),
        _check("older", given["older"], duration) if "older" in given else 0.0,
    )
    return _bounded(opened(asking, wanted))


def _asked_explanations(asking: AskedAgents, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    at = ""
    if text := given.get("at"):
        at = rfc3339_ns(_check("at", text, partial(moment, now=time.time_ns())))
    return explained(asking, AskedConnection(given["from"], given["to"], request.namespace, at))


_ASKED: Mapping[str, Callable[[AskedAgents, ListRequest], Iterable[Any]]] = {
    FRONTENDS: _asked_frontends,
    RATES: _asked_rates,
    FLOWS: _asked_flows,
    CONNECTIONS: _asked_connections,
    EXPLANATIONS: _asked_explanations,
}


def _frontend_items(
    found: list[FrontendOfCluster], _: ListRequest, sight: NamespaceSight | None
) -> list[Any]:
    return plain_frontends(_seen(found, sight.frontend if sight else None))


def _rate_items(found: list[Any], request: ListRequest, sight: NamespaceSight | None) -> list[Any]:
    see = sight.rate if sight else None
    if "at" not in request.parameters:
        return list(map(to_builtins, _seen(found, see)))
    return [to_builtins(PastRates(each.records, list(_seen(each.services, see)))) for each in found]


def _flow_items(
    found: list[Flow | LostFlows], request: ListRequest, sight: NamespaceSight | None
) -> list[Any]:
    if not sight:
        return list(map(to_builtins, found))
    seen = (each if isinstance(each, LostFlows) else sight.flow(each) for each in found)
    shown = (each for each in seen if each and is_wanted(each, request.parameters))
    return list(map(to_builtins, shown))


def _connection_items(
    found: list[OpenConnection], request: ListRequest, sight: NamespaceSight | None
) -> list[Any]:
    seen = _seen(found, sight.connection if sight else None)
    wanted = request.parameters.get("from", "") if sight else ""
    return [to_builtins(each) for each in seen if not wanted or _is_end(wanted, each.client)]


def _explanation_items(
    found: list[Any], request: ListRequest, sight: NamespaceSight | None
) -> list[Any]:
    items = [asdict(each) for each in found]
    if not sight:
        return items
    by_name = bool(parse_target(request.parameters["to"]).end.name)
    return own_explanations(items, sight, by_name=by_name)


_ITEMS: Mapping[str, Callable[[list[Any], ListRequest, NamespaceSight | None], list[Any]]] = {
    FRONTENDS: _frontend_items,
    RATES: _rate_items,
    FLOWS: _flow_items,
    CONNECTIONS: _connection_items,
    EXPLANATIONS: _explanation_items,
}


def _seen(found: Iterable[Found], see: Callable[[Found], Found | None] | None) -> Iterator[Found]:
    return filter(None, map(see, found)) if see else iter(found)


def is_wanted(flow: Flow | LostFlows, given: Mapping[str, str]) -> bool:
    """Whether it matches by what is shown of it: a filter must not find what is hidden."""
    if isinstance(flow, LostFlows):
        return True
    source, target = given.get("from", ""), given.get("to", "")
    is_target = not target or _is_end(target, flow.backend)
    return (not source or _is_end(source, flow.client)) and (
        is_target or target == flow.frontend.address
    )


def _is_end(wanted: str, end: FlowClient | None) -> bool:
    return end is not None and wanted in (end.pod, end.address)


def _may_be_seen(wanted: str, sight: NamespaceSight) -> bool:
    """Whether it is no pod of a namespace whose pods the viewer may not list."""
    namespace, slash, _ = wanted.partition("/")
    return not slash or sight.sees(namespace)


def _require_own(namespace: str, own: str) -> None:
    if namespace != own:
        text = f"the Service is in namespace {namespace}: ask there, and not in {own}"
        raise ApiError(HTTPStatus.BAD_REQUEST, text)


def _check(name: str, text: str, parse: Callable[[object], Found]) -> Found:
    try:
        return parse(text)
    except ValueError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{name}: {text!r}: {error}") from error


def _bounded(found: Iterator[Found]) -> list[Found]:
    """ApiError if there are too many to be kept in memory."""
    kept = list(islice(found, MOST_ITEMS + 1))
    if len(kept) > MOST_ITEMS:
        text = f"more than {MOST_ITEMS} match: ask for fewer, by Service, time or number"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
    return kept


def _told_failures(
    failures: Mapping[str, set[str]], sight: NamespaceSight | None
) -> Mapping[str, list[str]]:
    """Those that read the same are one."""
    found = defaultdict[str, set[str]](set)
    for error, nodes in failures.items():
        found[told(error, sight)] |= nodes
    return {error: sorted(found[error]) for error in sorted(found)}


def told(error: str, sight: NamespaceSight | None) -> str:
    """Within a namespace without names of others.

    In brackets are names like one that an agent does not know, and what nobody could read.
    """
    if not sight:
        return error

    def shown(name: re.Match[str]) -> str:
        return name[0] if sight.sees(name[1]) else ELSEWHERE

    return sight.text(_FULL_NAME.sub(shown, error.partition(" (")[0]))


def _unknown_rights(error: ClusterError) -> ApiError:
    """The error may have the address of a node."""
    _log.warning("cannot tell what a viewer may see: %s", error)
    text = "the API server does not tell what you may see: try again"
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, text)

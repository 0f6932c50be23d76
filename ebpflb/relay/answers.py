# SPDX-License-Identifier: Apache-2.0
"""The answer to each request: asked of the agents, merged as the plugin does, then redacted."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from ebpflb.cli.explain_words import address_or_name, parse_target
from ebpflb.config.values import Number, duration
from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import Answering, Asking
from ebpflb.kubectl.connections import opened
from ebpflb.kubectl.explain import explained
from ebpflb.kubectl.flows import recent
from ebpflb.kubectl.services import FrontendOfCluster, merged, plain_frontends
from ebpflb.kubectl.top import sampled
from ebpflb.model.address import format_address
from ebpflb.model.connection import OpenConnection, WantedConnections
from ebpflb.model.flow import Flow, FlowClient, LostFlows
from ebpflb.model.watched import FollowedNode, watch_line
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.explaining import check_explanation, own_explanations
from ebpflb.relay.following import FlowHub, Watched
from ebpflb.relay.identity import Viewer
from ebpflb.relay.redaction import NamespaceSight
from ebpflb.relay.requests import ApiError, Document, ListRequest, list_document
from ebpflb.relay.rights import Attributes
from ebpflb.relay.shared import Shared
from ebpflb.words.observe import CONNECTIONS, EXPLANATIONS, FLOWS, FRONTENDS, RATES

Found = TypeVar("Found")

MOST_ITEMS = 20_000
_SAMPLE_SECONDS, _LONGEST_SAMPLE = 2.0, 10.0
# More than most clusters have nodes: each waits for as long as a sample takes.
_AGENTS_AT_ONCE = 256
_PODS, _NODES = Attributes("list", "", "pods"), Attributes("list", "", "nodes")


class Merged(NamedTuple):
    """What the agents say together. failures: what went wrong -> on which nodes."""

    items: list[Any]
    failures: Mapping[str, set[str]]


@dataclass(frozen=True)
class Answers:
    """Thread-safe. Who asks for the same at the same time shares what the agents say."""

    cluster: ObservedCluster
    executor: Answering
    hub: FlowHub
    shared: Shared[Merged] = field(default_factory=Shared)

    def document(self, request: ListRequest, viewer: Viewer) -> Document:
        """ApiError, ClusterError."""
        sight = self._sight(request.namespace, viewer)
        try:
            if sight and not self._may_ask(request, sight):
                return list_document(request.resource, [], {})
            found = self.shared.get(request.key, lambda: self._merged(request))
        except ConfigError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except ClusterError as error:
            text = sight.text(str(error)) if sight else str(error)
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, text) from error
        items = _ITEMS[request.resource](found.items, request, sight)
        failures = {
            _told(error, sight): sorted(nodes) for error, nodes in sorted(found.failures.items())
        }
        return list_document(request.resource, items, failures)

    def watch(self, request: ListRequest, viewer: Viewer) -> Iterator[bytes]:
        """Lines of JSON of the flows that are wanted, as they happen; b"" now and then.

        ApiError, ClusterError, before the first piece.
        """
        sight = self._sight(request.namespace, viewer)
        if sight and not self._may_ask(request, sight):
            text = "from or to: another's pod, whose flows you may not see"
            raise ApiError(HTTPStatus.FORBIDDEN, text)
        batches = self.hub.watch()
        first = next(batches)
        return (_watch_lines(batch, request, sight) for batch in chain([first], batches))

    def _sight(self, namespace: str, viewer: Viewer) -> NamespaceSight | None:
        """None for all namespaces: of those nothing is left out."""
        if not namespace:
            return None
        rights = self.cluster.rights
        return NamespaceSight(
            namespace,
            lambda of: rights.may(viewer, _PODS._replace(namespace=of)),
            rights.may(viewer, _NODES),
            self.cluster.addresses.get(),
        )

    def _may_ask(self, request: ListRequest, sight: NamespaceSight) -> bool:
        """Whether there may be anything that the viewer may see. ApiError if it asks elsewhere."""
        given, namespace = request.parameters, request.namespace
        if service := given.get("service", ""):
            _require_own(service.partition("/")[0], namespace)
        if request.resource == EXPLANATIONS:
            check_explanation(self.cluster, given, sight)
            return True
        pods = [_pod(given[name]) for name in ("from", "to") if given.get(name)]
        return all(not pod or _sees(sight, pod) for pod in pods)

    def _merged(self, request: ListRequest) -> Merged:
        asking = Asking(
            self.cluster.access, self._agents(request.nodes), self.executor, _AGENTS_AT_ONCE
        )
        items = list(_ASKED[request.resource](asking, request))
        return Merged(items, asking.failures)

    def _agents(self, nodes: tuple[str, ...]) -> list[RemoteAgent]:
        try:
            agents = self.cluster.agents.get()
        except ClusterError as error:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        if unknown := set(nodes) - {each.node for each in agents}:
            text = f"node {', '.join(sorted(unknown))}: not found"
            raise ApiError(HTTPStatus.BAD_REQUEST, text)
        return [each for each in agents if not nodes or each.node in nodes]


def _asked_frontends(asking: Asking, request: ListRequest) -> Iterable[Any]:
    return merged(asking, {**request.parameters, "namespace": request.namespace})


def _asked_rates(asking: Asking, request: ListRequest) -> Iterable[Any]:
    interval = _SAMPLE_SECONDS
    if text := request.parameters.get("interval"):
        interval = _check("interval", text, duration)
        if not 0 < interval <= _LONGEST_SAMPLE:
            raise ApiError(
                HTTPStatus.BAD_REQUEST, f"interval: want up to {_LONGEST_SAMPLE:g} seconds"
            )
    return sampled(asking, interval, request.namespace)


def _asked_flows(asking: Asking, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    if limit := given.get("limit"):
        _check("limit", limit, Number(0, MOST_ITEMS))
    return _bounded(recent(asking, {**given, "services-of": request.namespace}))


def _asked_connections(asking: Asking, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    wanted = WantedConnections(
        request.namespace,
        given.get("service", ""),
        given.get("from", ""),
        given.get("backend-gone") == "true",
        _check("older", given["older"], duration) if "older" in given else 0.0,
    )
    return _bounded(opened(asking, wanted))


def _asked_explanations(asking: Asking, request: ListRequest) -> Iterable[Any]:
    given = request.parameters
    for name in ("from", "to"):
        if name not in given:
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{name}: say what is to be explained")
    return explained(asking, given["from"], given["to"], request.namespace)


_ASKED: Mapping[str, Callable[[Asking, ListRequest], Iterable[Any]]] = {
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


def _rate_items(found: list[Any], _: ListRequest, sight: NamespaceSight | None) -> list[Any]:
    return [asdict(each) for each in _seen(found, sight.rate if sight else None)]


def _flow_items(
    found: list[Flow | LostFlows], request: ListRequest, sight: NamespaceSight | None
) -> list[Any]:
    if not sight:
        return list(map(to_builtins, found))
    seen = (each if isinstance(each, LostFlows) else sight.flow(each) for each in found)
    shown = (each for each in seen if each and _is_wanted(each, request.parameters))
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


def _watch_lines(
    batch: Iterable[Watched], request: ListRequest, sight: NamespaceSight | None
) -> bytes:
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
    return shown if shown and _is_chosen(shown, given) and _is_wanted(shown, given) else None


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


def _is_wanted(flow: Flow | LostFlows, given: Mapping[str, str]) -> bool:
    """Whether it matches by what is shown of it: a filter must not find what is hidden."""
    if isinstance(flow, LostFlows):
        return True
    source, target = given.get("from", ""), given.get("to", "")
    is_target = not target or _is_end(target, flow.backend)
    return (not source or _is_end(source, flow.client)) and (
        is_target or _canonical(target) == flow.frontend.address
    )


def _is_end(wanted: str, end: FlowClient | None) -> bool:
    return end is not None and _canonical(wanted) in (end.pod, end.address)


def _canonical(text: str) -> str:
    found = address_or_name(text, "", None)
    if not found:
        return text
    return format_address(found.address) if found.address else str(found.name)


def _pod(text: str) -> str:
    """NAMESPACE/NAME; "" for an address. ConfigError."""
    found = address_or_name(text, "", None)
    if not found:
        raise ConfigError(f"{text!r}: want an address or NAMESPACE/POD")
    return str(found.name) if found.name else ""


def _sees(sight: NamespaceSight, pod: str) -> bool:
    namespace = pod.partition("/")[0]
    return namespace == sight.namespace or sight.sees_pods(namespace)


def _require_own(namespace: str, own: str) -> None:
    if namespace != own:
        text = f"the Service is in namespace {namespace}: ask there, and not in {own}"
        raise ApiError(HTTPStatus.BAD_REQUEST, text)


def _check(name: str, text: str, parse: Callable[[object], float]) -> float:
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


def _told(error: str, sight: NamespaceSight | None) -> str:
    """Within a namespace without names like the one that an agent does not know."""
    if not sight:
        return error
    return sight.text(error.partition(" (")[0] if error.startswith("unknown ") else error)

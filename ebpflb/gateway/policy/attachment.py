# SPDX-License-Identifier: Apache-2.0
"""Which routes are attached to which listeners, and why others are not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ebpflb.gateway.policy.conditions import WantedCondition
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.objects import (
    Gateway,
    GatewayListener,
    GatewayRoute,
    NamespaceSelector,
    ParentReference,
    RouteKind,
    RouteNamespaces,
    SelectorExpression,
)
from ebpflb.words.gateway import GROUP, ROUTE_OF

_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


class RouteAttachment(NamedTuple):
    """A route's reference to one of our Gateways. listeners: the names of those that take it."""

    reference: ParentReference
    gateway: Key
    listeners: tuple[str, ...]
    accepted: WantedCondition


class AttachedRoute(NamedTuple):
    kind: str
    route: GatewayRoute


Attachments = Mapping[tuple[str, Key], Sequence[RouteAttachment]]
"""By a route's kind, and its namespace and name."""


def attachments(found: FoundObjects) -> Attachments:
    return {
        (kind, route.key): list(_of_route(kind, route, found))
        for kind, routes in found.routes.items()
        for route in routes.values()
    }


def attached_routes(
    all_of_them: Attachments, found: FoundObjects
) -> Mapping[tuple[Key, str], Sequence[AttachedRoute]]:
    """The routes of each listener, by its Gateway and its name, the oldest first."""
    by_listener: dict[tuple[Key, str], dict[tuple[str, Key], AttachedRoute]] = {}
    for (kind, key), of_route in all_of_them.items():
        for each in of_route:
            for name in each.listeners:
                routes = by_listener.setdefault((each.gateway, name), {})
                routes[kind, key] = AttachedRoute(kind, found.routes[kind][key])
    return {
        place: sorted(routes.values(), key=lambda each: each.route.age)
        for place, routes in by_listener.items()
    }


def own_kind(listener: GatewayListener) -> RouteKind | None:
    """The only kind of routes that can be served there; None for an unknown protocol."""
    kind = ROUTE_OF.get(listener.protocol)
    return RouteKind(kind=kind) if kind else None


def supported_kinds(listener: GatewayListener) -> list[RouteKind]:
    """Those that it allows and that can be served."""
    kind = own_kind(listener)
    asked = listener.allowed_routes.kinds if listener.allowed_routes else None
    return [kind] if kind and (not asked or kind in asked) else []


def _of_route(kind: str, route: GatewayRoute, found: FoundObjects) -> Iterator[RouteAttachment]:
    for reference in route.spec.parent_refs or ():
        key = reference.namespace or route.metadata.namespace, reference.name
        gateway = found.own_gateways.get(key)
        if gateway and (reference.group, reference.kind) == (GROUP, "Gateway"):
            yield _attachment(RouteKind(kind=kind), route, reference, gateway, found)


def _attachment(
    kind: RouteKind,
    route: GatewayRoute,
    reference: ParentReference,
    gateway: Gateway,
    found: FoundObjects,
) -> RouteAttachment:
    meant = [each for each in gateway.spec.listeners if _is_meant(reference, each)]
    taking = [
        each.name
        for each in meant
        if kind in supported_kinds(each) and _allows(each, route, gateway, found)
    ]
    if taking:
        accepted = WantedCondition("Accepted", True, "Accepted")
    elif meant:
        what = f"no listener that is meant allows a {kind.kind} of this namespace"
        accepted = WantedCondition("Accepted", False, "NotAllowedByListeners", what)
    else:
        what = "the Gateway has no such listener"
        accepted = WantedCondition("Accepted", False, "NoMatchingParent", what)
    return RouteAttachment(reference, gateway.key, tuple(taking), accepted)


def _is_meant(reference: ParentReference, listener: GatewayListener) -> bool:
    is_named = reference.section_name in (None, "", listener.name)
    return is_named and reference.port in (None, listener.port)


def _allows(
    listener: GatewayListener, route: GatewayRoute, gateway: Gateway, found: FoundObjects
) -> bool:
    allowed = listener.allowed_routes.namespaces if listener.allowed_routes else None
    namespaces = allowed or RouteNamespaces()
    match namespaces.source:
        case "All":
            return True
        case "Same":
            return route.metadata.namespace == gateway.metadata.namespace
        case "Selector":
            labels = found.labels_of(route.metadata.namespace)
            return _selects(namespaces.selector, labels)
        case _:
            return False


def _selects(selector: NamespaceSelector | None, labels: Mapping[str, str]) -> bool:
    """As in Kubernetes: an empty selector selects all, none selects nothing."""
    if selector is None:
        return False
    equal = (labels.get(key) == value for key, value in (selector.match_labels or {}).items())
    return all(equal) and all(_holds(each, labels) for each in selector.match_expressions or ())


def _holds(expression: SelectorExpression, labels: Mapping[str, str]) -> bool:
    test = _OPERATORS.get(expression.operator)
    return test is not None and test(labels.get(expression.key), expression.values or ())

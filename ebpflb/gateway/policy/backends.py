# SPDX-License-Identifier: Apache-2.0
"""The Services that a route refers to, and whether it may."""

from collections.abc import Sequence
from typing import NamedTuple

from ebpflb.gateway.policy.attachment import AttachedRoute
from ebpflb.gateway.policy.conditions import WantedCondition
from ebpflb.gateway.policy.found import FoundObjects, Key, is_ours
from ebpflb.gateway.policy.objects import BackendReference
from ebpflb.words.gateway import GROUP

RESOLVED = WantedCondition("ResolvedRefs", True, "ResolvedRefs")


class RouteBackend(NamedTuple):
    """A port of a Service, and what it gets of the connections."""

    service: Key
    port_name: str
    protocol: str
    port: int
    weight: int


class ResolvedBackends(NamedTuple):
    """backends: those that can be had; those that are named twice have the sum of their weights."""

    backends: Sequence[RouteBackend]
    finding: WantedCondition


def resolved(attached: AttachedRoute, found: FoundObjects) -> ResolvedBackends:
    backends: dict[tuple[Key, int], RouteBackend] = {}
    problems: list[WantedCondition] = []
    for rule in attached.route.spec.rules or ():
        for reference in rule.backend_refs or ():
            backend = _backend(attached, reference, found)
            if isinstance(backend, WantedCondition):
                problems.append(backend)
                continue
            place = backend.service, backend.port
            before = backends.get(place)
            weight = backend.weight + (before.weight if before else 0)
            backends[place] = backend._replace(weight=weight)
    finding = RESOLVED
    if problems:
        text = "; ".join(dict.fromkeys(each.message for each in problems))
        finding = problems[0]._replace(message=text)
    return ResolvedBackends(list(backends.values()), finding)


def _backend(
    attached: AttachedRoute, reference: BackendReference, found: FoundObjects
) -> RouteBackend | WantedCondition:
    own = attached.route.metadata.namespace
    key = reference.namespace or own, reference.name
    name = "/".join(key)
    if (reference.group, reference.kind) != ("", "Service"):
        return _problem("InvalidKind", f"{reference.name}: only Services can be backends")
    if key[0] != own and not _is_granted(attached.kind, own, key, found):
        return _problem("RefNotPermitted", f"{name}: no ReferenceGrant permits it")
    service = found.services.get(key)
    if service is None or service.spec.type == "ExternalName" or is_ours(service):
        what = "no such Service, or the one of a Gateway, or no more than an external name"
        return _problem("BackendNotFound", f"{name}: {what}")
    protocol = attached.kind.removesuffix("Route")
    for port in service.spec.ports or ():
        if port.port == reference.port and port.protocol == protocol:
            return RouteBackend(key, port.name, protocol, port.port, reference.weight)
    what = f"has no {protocol} port {reference.port or 'that is named'}"
    return _problem("BackendNotFound", f"Service {name} {what}")


def _problem(reason: str, message: str) -> WantedCondition:
    return WantedCondition("ResolvedRefs", False, reason, message)


def _is_granted(kind: str, namespace: str, service: Key, found: FoundObjects) -> bool:
    return any(
        any((each.group, each.kind, each.namespace) == (GROUP, kind, namespace) for each in sources)
        and any(
            (each.group, each.kind) == ("", "Service") and each.name in (None, "", service[1])
            for each in grant.spec.to
        )
        for grant in found.grants.values()
        if grant.metadata.namespace == service[0]
        for sources in (grant.spec.sources,)
    )

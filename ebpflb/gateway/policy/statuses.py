# SPDX-License-Identifier: Apache-2.0
"""What is to be told in the status of objects."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import ValidationError, convert, to_builtins

from ebpflb.gateway.policy.attachment import RouteAttachment
from ebpflb.gateway.policy.conditions import WantedCondition, told
from ebpflb.gateway.policy.imports import ImportVerdict
from ebpflb.gateway.policy.objects import (
    ApiItem,
    GatewayClass,
    GatewayClassStatus,
    GatewayRoute,
    GatewayStatus,
    ImportStatus,
    ParentReference,
    RouteStatus,
    StatusCondition,
)
from ebpflb.gateway.policy.verdict import NO_PARAMETERS, GatewayVerdict
from ebpflb.words.gateway import CONTROLLER, FEATURES

Fields = Mapping[str, Any]

_MOST_PARENTS = 32


class WantedStatus(NamedTuple):
    """kind: of the object. before, after: the fields of its status that are ours."""

    kind: str
    item: ApiItem
    before: Fields
    after: Fields


def class_status(item: GatewayClass, now: str) -> WantedStatus:
    accepted = WantedCondition("Accepted", True, "Accepted")
    if item.spec.parameters_ref:
        accepted = WantedCondition("Accepted", False, "InvalidParameters", NO_PARAMETERS)
    status = item.status or GatewayClassStatus()
    before = {
        "conditions": to_builtins(status.conditions or []),
        "supportedFeatures": to_builtins(status.supported_features or []),
    }
    after = {
        "conditions": told([accepted], status.conditions, item.metadata.generation, now),
        "supportedFeatures": [{"name": each} for each in FEATURES],
    }
    return WantedStatus("GatewayClass", item, before, after)


def gateway_status(found: GatewayVerdict, now: str) -> WantedStatus:
    item = found.gateway
    status, generation = item.status or GatewayStatus(), item.metadata.generation
    known = {each.name: each for each in status.listeners or ()}
    before = {
        "addresses": to_builtins(status.addresses or []),
        "conditions": to_builtins(status.conditions or []),
        "listeners": to_builtins(status.listeners or []),
    }
    conditions = {name: each.conditions for name, each in known.items()}
    after = {
        "addresses": to_builtins(found.addresses),
        "conditions": told((found.accepted, found.programmed), status.conditions, generation, now),
        "listeners": [
            {
                "name": (name := each.listener.name),
                "supportedKinds": to_builtins(each.kinds),
                "attachedRoutes": len(each.routes),
                "conditions": told(
                    each.findings(found.programmed), conditions.get(name), generation, now
                ),
            }
            for each in found.listeners
        ],
    }
    return WantedStatus("Gateway", item, before, after)


def route_status(
    kind: str,
    item: GatewayRoute,
    attached: Sequence[RouteAttachment],
    resolved: WantedCondition,
    now: str,
) -> WantedStatus:
    """Without parents of which none of our Gateways is one any more."""
    parents = (item.status or RouteStatus()).parents or []
    ours = [each for each in parents if each.get("controllerName") == CONTROLLER]
    after = [each for each in parents if each not in ours]
    for each in attached:
        reference = _fields(each.reference)
        known = [one.get("conditions") or () for one in ours if one.get("parentRef") == reference]
        findings = each.accepted, resolved
        after.append(
            {
                "parentRef": reference,
                "controllerName": CONTROLLER,
                "conditions": told(findings, _read(known), item.metadata.generation, now),
            }
        )
    return WantedStatus(kind, item, {"parents": parents}, {"parents": after[:_MOST_PARENTS]})


def import_status(found: ImportVerdict, now: str) -> WantedStatus:
    item = found.item
    conditions = (item.status or ImportStatus()).conditions
    before = {"conditions": to_builtins(conditions or [])}
    after = {"conditions": told([found.ready], conditions, item.metadata.generation, now)}
    return WantedStatus("ServiceImport", item, before, after)


def _read(known: Sequence[object]) -> Sequence[StatusCondition]:
    """Those of the first; none if they cannot be read: they are told anew."""
    with suppress(ValidationError):
        return convert(known[0], list[StatusCondition]) if known else []
    return []


def _fields(reference: ParentReference) -> Fields:
    return {name: each for name, each in to_builtins(reference).items() if each is not None}

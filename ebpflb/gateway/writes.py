# SPDX-License-Identifier: Apache-2.0
"""What must be written so that there is what is wanted."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ebpflb.gateway.policy.found import FoundObjects, Key, is_made_of, is_ours
from ebpflb.gateway.policy.objects import ApiItem, GivenService, GivenSlice, ObjectHead
from ebpflb.gateway.policy.plan import Plan
from ebpflb.gateway.policy.statuses import WantedStatus
from ebpflb.gateway.store import KINDS
from ebpflb.source.api import ApiRequest
from ebpflb.words.annotations import SLICE_WEIGHT
from ebpflb.words.gateway import MANAGED_BY, PROPAGATED, SLICE_MANAGED_BY

Fields = Mapping[str, Any]


class ObjectWrite(NamedTuple):
    """method: POST, PATCH or DELETE. service: the name of the Service that is written, if any."""

    method: str
    request: ApiRequest
    service: Key | None = None


class _Kind(NamedTuple):
    """label: the one that tells which are ours."""

    name: str
    label: str


_SERVICE, _SLICE = _Kind("Service", MANAGED_BY), _Kind("EndpointSlice", SLICE_MANAGED_BY)


def writes(plan: Plan, found: FoundObjects) -> Iterator[ObjectWrite]:
    """In an order in which new connections are neither refused nor led to drained endpoints."""
    sources = (*found.gateways.values(), *found.imports.values())
    owners = {each.metadata.uid: each for each in sources}
    for key, service in plan.wanted.services.items():
        known = found.services.get(key)
        # The policy wants none in place of somebody else's.
        changes = _service_changes(known, service) if known else None
        yield from _write(_SERVICE, key, service, known, changes)
    slices = {each.key: each for pieces in found.slices.values() for each in pieces}
    drained = {key: each for key, each in slices.items() if _is_drained(each.metadata.annotations)}
    yield from _removals(_SLICE, drained, plan.wanted.slices, owners)
    for key, piece in sorted(
        plan.wanted.slices.items(), key=lambda item: _is_drained(item[1]["metadata"]["annotations"])
    ):
        there = slices.get(key)
        if there is None or _owner(there, _SLICE, owners):
            changes = _slice_changes(there, piece) if there else None
            yield from _write(_SLICE, key, piece, there, changes)
    others = {key: each for key, each in slices.items() if key not in drained}
    yield from _removals(_SLICE, others, plan.wanted.slices, owners)
    yield from _removals(_SERVICE, found.services, plan.wanted.services, owners)
    for key, ips in plan.ips.items():
        body = _with_version(found.imports[key].metadata, {"spec": {"ips": ips}})
        yield ObjectWrite("PATCH", _request("ServiceImport", key, body))
    yield from map(_status_write, plan.statuses)


def _is_drained(annotations: Mapping[str, str] | None) -> bool:
    """Whether the endpoints of a slice take no new connections while there are others."""
    return (annotations or {}).get(SLICE_WEIGHT) == "0"


def _write(
    kind: _Kind,
    key: Key,
    wanted: Fields,
    known: GivenService | GivenSlice | None,
    changes: Fields | None,
) -> Iterator[ObjectWrite]:
    service = key if kind is _SERVICE else None
    if known is None:
        yield ObjectWrite("POST", _request(kind.name, (key[0], ""), wanted), service)
    elif changes:
        body = _with_version(known.metadata, changes)
        yield ObjectWrite("PATCH", _request(kind.name, key, body), service)


def _removals(
    kind: _Kind,
    known: Mapping[Key, Any],
    wanted: Mapping[Key, Fields],
    owners: Mapping[str, ApiItem],
) -> Iterator[ObjectWrite]:
    """Those of owners that are there; the API server removes those of others."""
    for key, each in known.items():
        if key not in wanted and _owner(each, kind, owners):
            body = {"preconditions": {"uid": each.metadata.uid}}
            yield ObjectWrite("DELETE", _request(kind.name, key, body))


def _owner(
    item: GivenService | GivenSlice, kind: _Kind, owners: Mapping[str, ApiItem]
) -> ApiItem | None:
    """The Gateway or ServiceImport in its namespace that it was made of."""
    if not is_ours(item, kind.label):
        return None
    for reference in item.metadata.owner_references or ():
        owner = owners.get(reference.uid)
        if owner and owner.key[0] == item.key[0] and is_made_of(item, owner, kind.label):
            return owner
    return None


def _service_changes(known: GivenService, wanted: Fields) -> Fields:
    spec, head = wanted["spec"], wanted["metadata"]
    before = {
        "type": known.spec.type,
        "externalIPs": known.spec.external_ips or [],
        "loadBalancerIP": known.spec.load_balancer_ip,
        "ipFamilyPolicy": known.spec.ip_family_policy,
        "ipFamilies": known.spec.ip_families,
        "sessionAffinity": known.spec.session_affinity,
        "sessionAffinityConfig": known.spec.session_affinity_config,
        "internalTrafficPolicy": known.spec.internal_traffic_policy,
        "trafficDistribution": known.spec.traffic_distribution,
        "ports": [
            {"name": each.name, "protocol": each.protocol, "port": each.port}
            for each in known.spec.ports or ()
        ],
    }
    changes = {name: each for name, each in spec.items() if before[name] != each}
    labels = _changed(known.metadata.labels, head["labels"], ())
    annotations = known.metadata.annotations or {}
    propagated = (*annotations.get(PROPAGATED, "").split(), PROPAGATED)
    noted = _changed(annotations, head["annotations"], propagated)
    return {
        **({"spec": changes} if changes else {}),
        **({"metadata": {"labels": labels, "annotations": noted}} if labels or noted else {}),
    }


def _slice_changes(known: GivenSlice, wanted: Fields) -> Fields:
    before = {
        "endpoints": known.endpoints or [],
        "ports": [
            {"name": each.name, "protocol": each.protocol, "port": each.port}
            for each in known.ports or ()
        ],
    }
    changes = {name: wanted[name] for name, each in before.items() if each != wanted[name]}
    head = wanted["metadata"]
    labels = _changed(known.metadata.labels, head["labels"], ())
    noted = _changed(known.metadata.annotations, head["annotations"], (SLICE_WEIGHT,))
    if labels or noted:
        changes["metadata"] = {"labels": labels, "annotations": noted}
    return changes


def _changed(
    known: Mapping[str, str] | None, wanted: Mapping[str, str], ours: tuple[str, ...]
) -> dict[str, str | None]:
    """Texts to set, and None for those to remove: of `ours`, what is not wanted."""
    before = known or {}
    gone = {name: None for name in ours if name in before and name not in wanted}
    return {**gone, **{name: text for name, text in wanted.items() if before.get(name) != text}}


def _status_write(status: WantedStatus) -> ObjectWrite:
    metadata = status.item.metadata
    request = _request(
        status.kind, status.item.key, _with_version(metadata, {"status": status.after})
    )
    resource = f"{request.resource}/status"
    return ObjectWrite("PATCH", request._replace(path=f"{request.path}/status", resource=resource))


def _with_version(head: ObjectHead, changes: Fields) -> Fields:
    """For the API server to refuse it if the object is another one by now."""
    metadata = {**changes.get("metadata", {}), "resourceVersion": head.resource_version}
    return {**changes, "metadata": metadata}


def _request(kind: str, key: Key, body: Fields) -> ApiRequest:
    found = KINDS[kind]
    return ApiRequest(found.path(key), found.resource.name, {}, body)

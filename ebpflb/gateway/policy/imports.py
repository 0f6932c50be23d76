# SPDX-License-Identifier: Apache-2.0
"""The Service and the EndpointSlices of a ServiceImport, and what is found about it."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ebpflb.gateway.policy.addresses import own_service
from ebpflb.gateway.policy.conditions import WantedCondition
from ebpflb.gateway.policy.found import FoundObjects, Key, is_ours
from ebpflb.gateway.policy.objects import GivenSlice, ServiceImport
from ebpflb.gateway.policy.owned import Fields, label_value, owned_metadata, slice_of
from ebpflb.words.gateway import IMPORT_LABEL, MANAGED_BY, MULTICLUSTER, OURS, SLICE_MANAGED_BY

_KIND = f"{MULTICLUSTER}/v1beta1", "ServiceImport"
_SERVED_TYPE = "ClusterSetIP"
_FAMILIES = ("IPv4", "IPv6")
_AFFINITY_SECONDS = 10800
_SAME_NODE = "PreferSameNode"
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", _SAME_NODE)
# What is true of an endpoint in each cluster, and what is only in its own.
_EVERYWHERE, _IN_ITS_CLUSTER = ("addresses", "conditions", "zone"), ("nodeName", "targetRef")


class ImportVerdict(NamedTuple):
    """has_service: whether it may have one. ips: those of the Service that is there."""

    item: ServiceImport
    has_service: bool
    ips: Sequence[str]
    ready: WantedCondition


def import_verdicts(found: FoundObjects) -> Iterator[ImportVerdict]:
    """Of those that are to have an address."""
    for item in found.imports.values():
        if item.spec.type == _SERVED_TYPE:
            yield _verdict(item, found)


def import_service_name(item: ServiceImport) -> Key:
    digest = hashlib.sha256(item.metadata.name.encode()).hexdigest()[:16]
    return item.metadata.namespace, f"derived-{digest}"


def import_service(item: ServiceImport) -> Fields:
    spec = item.spec
    families = spec.ip_families or ()
    distribution = spec.traffic_distribution
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **owned_metadata(_KIND, item, import_service_name(item)),
            "labels": {MANAGED_BY: OURS, IMPORT_LABEL: label_value(item.metadata.name)},
            "annotations": {},
        },
        "spec": {
            "type": "ClusterIP",
            # With both families, which one is first is for the cluster to say.
            "ipFamilyPolicy": "SingleStack" if len(families) == 1 else "PreferDualStack",
            **({"ipFamilies": families} if len(families) == 1 else {}),
            **_affinity(item),
            "internalTrafficPolicy": spec.internal_traffic_policy or "Cluster",
            "trafficDistribution": distribution if distribution in _DISTRIBUTIONS else None,
            "ports": [
                {"name": each.name, "protocol": each.transport, "port": each.port}
                for each in spec.ports
            ],
        },
    }


def import_slices(item: ServiceImport, found: FoundObjects) -> Mapping[Key, Fields]:
    """Those of all clusters. An endpoint that the own Service of that name has, too, has a node.

    Nodes of other clusters may have the names of nodes of this one.
    """
    namespace, service = import_service_name(item)
    ports = {(each.name, each.transport) for each in item.spec.ports}
    local = _by_address(found.slices.get(item.key, ()))
    objects = {}
    for piece in found.imported.get(item.key, ()):
        taken = [
            {"name": each.name or "", "protocol": each.protocol or "TCP", "port": each.port}
            for each in piece.ports or ()
            if each.port and (each.name or "", each.protocol or "TCP") in ports
        ]
        # Never a copy of a copy.
        if not taken or piece.address_type not in _FAMILIES or is_ours(piece, SLICE_MANAGED_BY):
            continue
        key = namespace, f"{service}-{_told_apart(piece)}"
        fields = {
            "annotations": {},
            "addressType": piece.address_type,
            "ports": taken,
            "endpoints": [
                _endpoint(each, local, item.spec.traffic_distribution)
                for each in piece.endpoints or ()
            ],
        }
        objects[key] = slice_of(_KIND, item, key, service, fields)
    return objects


def _verdict(item: ServiceImport, found: FoundObjects) -> ImportVerdict:
    key = import_service_name(item)
    service = own_service(item, key, found)
    addresses = (service.spec.cluster_ips if service else None) or ()
    ips = [each for each in addresses if each != "None"]
    is_taken = key in found.services and not service
    reason = what = ""
    if is_taken:
        what = f"Service {'/'.join(key)} is there already, and is not of this ServiceImport"
        reason = "Invalid"
    elif key in found.refusals:
        what = found.refusals[key]
        reason = "IPFamilyNotSupported" if "spec.ipFamilies" in what else "Invalid"
    elif not ips or ips != item.spec.ips:
        reason, what = "Pending", f"Service {'/'.join(key)} gives the address"
    ready = WantedCondition("Ready", not reason, reason or "Ready", what)
    return ImportVerdict(item, not is_taken, ips, ready)


def _affinity(item: ServiceImport) -> Fields:
    """With what the API server would fill in, so that it is not written again and again."""
    kind, config = item.spec.session_affinity or "None", item.spec.session_affinity_config
    if kind == "None":
        return {"sessionAffinity": kind, "sessionAffinityConfig": None}
    given = config.client.timeout_seconds if config and config.client else None
    seconds = _AFFINITY_SECONDS if given is None else given
    return {
        "sessionAffinity": kind,
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}},
    }


def _by_address(slices: Iterable[GivenSlice]) -> Mapping[str, Fields]:
    return {
        address: endpoint
        for piece in slices
        for endpoint in piece.endpoints or ()
        for address in _addresses(endpoint)
    }


def _addresses(endpoint: Fields) -> Sequence[str]:
    given = endpoint.get("addresses")
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _told_apart(piece: GivenSlice) -> str:
    text = "/".join((piece.metadata.name, piece.address_type))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _endpoint(given: Fields, local: Mapping[str, Fields], distribution: str) -> Fields:
    own = next((local[each] for each in _addresses(given) if each in local), {})
    made: dict[str, Any] = {
        **{name: given[name] for name in _EVERYWHERE if given.get(name) is not None},
        **{name: own[name] for name in _IN_ITS_CLUSTER if own.get(name) is not None},
    }
    hints = {}
    if distribution in _DISTRIBUTIONS and "zone" in made:
        hints["forZones"] = [{"name": made["zone"]}]
    if distribution == _SAME_NODE and "nodeName" in made:
        hints["forNodes"] = [{"name": made["nodeName"]}]
    return {**made, "hints": hints} if hints else made

# SPDX-License-Identifier: Apache-2.0
"""Which fields of an object count, given its other fields: only these can make it invalid."""

from collections.abc import Collection

from ebpflb.model.objects.kinds import Kind
from ebpflb.model.selection import PROXY_LABEL
from ebpflb.source.api_types import Fields

HEADLESS_LABEL = "service.kubernetes.io/headless"
SERVICE_LABEL = "kubernetes.io/service-name"
NO_CLUSTER_IP = ("", "None")
# Other pods may have the addresses of such a pod by now.
FINISHED = ("Succeeded", "Failed")
_USED_ADDRESSES = ("InternalIP", "ExternalIP")


def is_for_another_proxy(labels: Fields | None, label_keys: Collection[str]) -> bool:
    """`labels`: of a Service. `label_keys`: see decode()."""
    return PROXY_LABEL in (labels or {}) and PROXY_LABEL not in label_keys


def what_counts(kind: Kind, document: Fields, label_keys: Collection[str]) -> Fields:
    """The document without what does not count. `label_keys`: see decode()."""
    metadata, spec, status = map(document.get, ("metadata", "spec", "status"))
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    labels = labels if isinstance(labels, dict) else {}
    if kind is Kind.SERVICE:
        is_others = is_for_another_proxy(labels, label_keys)
        others = {} if is_others else {"spec": _service_spec(spec), "status": status}
        return {"metadata": metadata, **others}
    if kind is Kind.ENDPOINT_SLICE:
        is_headless = HEADLESS_LABEL in labels or not labels.get(SERVICE_LABEL)
        if is_headless or document.get("addressType") == "FQDN":
            return {"metadata": metadata, "addressType": "FQDN"}
    if kind is Kind.NODE:
        return {**document, "status": _node_status(status)}
    if kind is Kind.POD_LABELS:
        return {"metadata": metadata}
    if kind is Kind.POD:
        return {**document, "status": _pod_status(spec, status)}
    return document


def _service_spec(spec: object) -> object:
    if not isinstance(spec, dict):
        return spec
    if spec.get("clusterIP") in (None, *NO_CLUSTER_IP) or spec.get("type") == "ExternalName":
        return {key: spec.get(key) for key in ("clusterIP", "type")}
    if spec.get("sessionAffinity") != "ClientIP":
        return {**spec, "sessionAffinityConfig": None}
    return spec


def _node_status(status: object) -> object:
    """Without addresses of other types, such as host names."""
    entries = status.get("addresses") if isinstance(status, dict) else None
    if not isinstance(status, dict) or not isinstance(entries, list):
        return status
    used = [
        each
        for each in entries
        if not isinstance(each, dict) or each.get("type") in _USED_ADDRESSES
    ]
    return {**status, "addresses": used}


def _pod_status(spec: object, status: object) -> object:
    if isinstance(spec, dict) and spec.get("hostNetwork") is True:
        return None
    phase = status.get("phase") if isinstance(status, dict) else None
    return {"phase": phase} if phase in FINISHED else status

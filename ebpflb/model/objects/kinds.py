# SPDX-License-Identifier: Apache-2.0
"""The kinds of API objects, and what names one."""

from enum import StrEnum
from typing import NamedTuple

from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.node import Node
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.service import Service, ServiceCidr

ApiObject = Service | EndpointSlice | Node | ServiceCidr | Pod | PodNamespace | PodLabels


class Kind(StrEnum):
    """The kinds of API objects that matter here."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"
    POD = "Pod"
    NAMESPACE = "Namespace"
    POD_LABELS = "PartialObjectMetadata"

    @property
    def is_namespaced(self) -> bool:
        return self in (Kind.SERVICE, Kind.ENDPOINT_SLICE, Kind.POD, Kind.POD_LABELS)

    @property
    def noun(self) -> str:
        """What users know it as."""
        return str(Kind.POD if self is Kind.POD_LABELS else self)


class ObjectKey(NamedTuple):
    """Names an API object; namespace is empty for cluster-scoped objects."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.noun} {place}{self.name}"


def key_of(item: ApiObject) -> ObjectKey:
    if isinstance(item, Service):
        return ObjectKey(Kind.SERVICE, *item.name)
    if isinstance(item, EndpointSlice | Pod | PodLabels):
        names = {EndpointSlice: Kind.ENDPOINT_SLICE, Pod: Kind.POD, PodLabels: Kind.POD_LABELS}
        return ObjectKey(names[type(item)], item.namespace, item.name)
    kinds = {Node: Kind.NODE, ServiceCidr: Kind.SERVICE_CIDR, PodNamespace: Kind.NAMESPACE}
    return ObjectKey(kinds[type(item)], "", item.name)

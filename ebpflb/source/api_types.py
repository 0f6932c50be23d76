# SPDX-License-Identifier: Apache-2.0
"""API objects as they are in JSON: the fields that are read here, and what may be in them.

null and an empty text count as absent. What is Any is checked where it is used, if at all.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from ebpflb.model.objects.kinds import Kind

Fields = Mapping[str, Any]
"""An object by the names of its fields."""
Json = bytes | Raw

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_is_name = re.compile(_NAME).fullmatch

Name = Annotated[str, Meta(max_length=253, pattern=rf"\A{_NAME}\Z")]
DnsLabel = Annotated[str, Meta(max_length=63, pattern=rf"\A{_NAME}\Z")]
OptionalLabel = Annotated[str, Meta(max_length=63, pattern=rf"\A({_NAME})?\Z")]
NonEmpty = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
OptionalPort = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[int, Meta(ge=0, le=86400)]

ProtocolName = Literal["", "TCP", "UDP", "SCTP"]
FamilyName = Literal["IPv4", "IPv6"]
PolicyName = Literal["", "Cluster", "Local"]


def is_name(text: str) -> bool:
    """Whether the API server accepts it as a name, apart from the length."""
    return _is_name(text) is not None


class _Part(Struct, gc=False, rename="camel"):
    """JSON has no cycles, so the garbage collector need not know of its parts."""


class Metadata(_Part, kw_only=True):
    """The times are in RFC 3339; unquoted in YAML they are datetimes."""

    namespace: OptionalLabel | None = None
    labels: dict[Any, Any] | None = None
    annotations: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    uid: str | None = None


class ObjectMetadata(Metadata):
    name: Name


class ServiceMetadata(Metadata):
    name: DnsLabel


class PodMetadata(ObjectMetadata):
    owner_references: Any = None


class PortEntry(_Part, kw_only=True):
    name: OptionalLabel | None = None
    protocol: ProtocolName | None = None
    port: Port
    node_port: OptionalPort | None = None


class ClientIpConfig(_Part):
    timeout_seconds: Seconds | None = None


class AffinityConfig(_Part):
    client_ip: ClientIpConfig | None = field(name="clientIP", default=None)


class ServiceObjectSpec(_Part):
    type: Literal["", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"] | None = None
    cluster_ip: str | None = field(name="clusterIP", default=None)
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ip_families: list[FamilyName] | None = None
    ports: list[PortEntry] | None = None
    external_ips: list[str] | None = field(name="externalIPs", default=None)
    load_balancer_source_ranges: list[str] | None = None
    session_affinity: Literal["", "None", "ClientIP"] | None = None
    session_affinity_config: AffinityConfig | None = None
    internal_traffic_policy: PolicyName | None = None
    external_traffic_policy: PolicyName | None = None
    health_check_node_port: OptionalPort | None = None


class Ingress(_Part):
    ip: str | None = None
    ip_mode: Literal["", "VIP", "Proxy"] | None = None


class LoadBalancerStatus(_Part):
    ingress: list[Ingress] | None = None


class ServiceObjectStatus(_Part):
    load_balancer: LoadBalancerStatus | None = None


class ServiceObject(_Part):
    metadata: ServiceMetadata
    spec: ServiceObjectSpec | None = None
    status: ServiceObjectStatus | None = None


class SlicePortEntry(_Part):
    name: str | None = None
    protocol: ProtocolName | None = None
    port: OptionalPort | None = None


class Conditions(_Part):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class EndpointHint(_Part):
    name: NonEmpty


class EndpointHints(_Part):
    for_zones: list[EndpointHint] | None = None
    for_nodes: list[EndpointHint] | None = None


class TargetReference(_Part):
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None


class EndpointEntry(_Part):
    addresses: list[str] | None = None
    conditions: Conditions | None = None
    hints: EndpointHints | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: TargetReference | None = None


class SliceObject(_Part):
    metadata: ObjectMetadata
    address_type: Literal["IPv4", "IPv6", "FQDN"]
    ports: list[SlicePortEntry] | None = None
    endpoints: list[EndpointEntry] | None = None


class Taint(_Part):
    key: str | None = None


class NodeAddress(_Part):
    type: str | None = None
    address: str | None = None


class NodeObjectSpec(_Part):
    taints: list[Taint] | None = None
    pod_cidrs: list[str] | None = field(name="podCIDRs", default=None)


class NodeObjectStatus(_Part):
    addresses: list[NodeAddress] | None = None


class NodeObject(_Part):
    metadata: ObjectMetadata
    spec: NodeObjectSpec | None = None
    status: NodeObjectStatus | None = None


class ServiceCidrObjectSpec(_Part):
    cidrs: list[str] | None = None


class ServiceCidrObject(_Part):
    metadata: ObjectMetadata
    spec: ServiceCidrObjectSpec | None = None


class PodObjectSpec(_Part):
    host_network: bool | None = None


class PodIp(_Part):
    ip: str | None = None


class PodObjectStatus(_Part):
    phase: str | None = None
    pod_ips: list[PodIp] | None = field(name="podIPs", default=None)


class PodObject(_Part):
    metadata: PodMetadata
    spec: PodObjectSpec | None = None
    status: PodObjectStatus | None = None


class NamespaceObject(_Part):
    metadata: ObjectMetadata


class PodLabelsObject(_Part):
    metadata: ObjectMetadata


ApiType = (
    ServiceObject
    | SliceObject
    | NodeObject
    | ServiceCidrObject
    | PodObject
    | NamespaceObject
    | PodLabelsObject
)
API_TYPES: Mapping[Kind, type[ApiType]] = {
    Kind.SERVICE: ServiceObject,
    Kind.ENDPOINT_SLICE: SliceObject,
    Kind.NODE: NodeObject,
    Kind.SERVICE_CIDR: ServiceCidrObject,
    Kind.POD: PodObject,
    Kind.NAMESPACE: NamespaceObject,
    Kind.POD_LABELS: PodLabelsObject,
}
API_VERSIONS: Mapping[str, str] = {
    Kind.SERVICE: "v1",
    Kind.ENDPOINT_SLICE: "discovery.k8s.io/v1",
    Kind.NODE: "v1",
    Kind.SERVICE_CIDR: "networking.k8s.io/v1",
    Kind.POD: "v1",
    Kind.NAMESPACE: "v1",
    Kind.POD_LABELS: "meta.k8s.io/v1",
}


class AnyKind(_Part):
    """Of which kind an object is."""

    kind: Any = None
    api_version: Any = None


class TriggerAnnotation(_Part):
    changed: str | None = field(
        name="endpoints.kubernetes.io/last-change-trigger-time", default=None
    )


class KnownMetadata(_Part):
    """What is used of an object that may be invalid otherwise."""

    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    annotations: TriggerAnnotation | None = None


class AnyObject(_Part):
    metadata: KnownMetadata | None = None


class ListMetadata(_Part):
    resource_version: str | None = None
    rest: str | None = field(name="continue", default=None)


class ListObject(_Part):
    """A page of a list, with each object as it is in the page."""

    metadata: ListMetadata | None = None
    items: list[Raw] | None = None


class StatusObject(_Part):
    """Why a watch ends."""

    message: Any = None
    code: Any = None


class EventObject(_Part):
    """A line of a watch."""

    type: str
    object: Raw

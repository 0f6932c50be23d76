# SPDX-License-Identifier: Apache-2.0
"""API objects: the fields that are read here. The API server has checked their form.

null counts as absent.
"""

from typing import Any

from msgspec import Struct, field

from ebpflb.words.gateway import GROUP


class _Shared(Struct, rename="camel", kw_only=True):
    """Read-only: objects are shared."""


class OwnerReference(_Shared):
    uid: str


class ObjectHead(_Shared):
    """metadata. Times are in RFC 3339, in UTC."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class ApiItem(_Shared):
    metadata: ObjectHead

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def age(self) -> tuple[str, str, str]:
        """Sorts the oldest first; of the same second, names decide."""
        return self.metadata.creation_timestamp, *self.key


class StatusCondition(_Shared):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class GatewayClassSpec(_Shared):
    controller_name: str
    parameters_ref: Any = None


class FeatureName(_Shared):
    name: str


class GatewayClassStatus(_Shared):
    conditions: list[StatusCondition] | None = None
    supported_features: list[FeatureName] | None = None


class GatewayClass(ApiItem):
    spec: GatewayClassSpec
    status: GatewayClassStatus | None = None


class RouteKind(_Shared):
    kind: str
    group: str = GROUP


class SelectorExpression(_Shared):
    key: str
    operator: str
    values: list[str] | None = None


class NamespaceSelector(_Shared):
    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorExpression] | None = None


class RouteNamespaces(_Shared):
    source: str = field(name="from", default="Same")
    selector: NamespaceSelector | None = None


class AllowedRoutes(_Shared):
    namespaces: RouteNamespaces | None = None
    kinds: list[RouteKind] | None = None


class GatewayListener(_Shared):
    name: str
    port: int
    protocol: str
    allowed_routes: AllowedRoutes | None = None


class GatewayAddress(_Shared):
    type: str = "IPAddress"
    value: str = ""


class Infrastructure(_Shared):
    annotations: dict[str, str] | None = None
    parameters_ref: Any = None


class GatewaySpec(_Shared):
    gateway_class_name: str
    listeners: list[GatewayListener]
    addresses: list[GatewayAddress] | None = None
    infrastructure: Infrastructure | None = None


class ListenerStatus(_Shared):
    name: str
    supported_kinds: list[RouteKind] = []
    attached_routes: int = 0
    conditions: list[StatusCondition] = []


class GatewayStatus(_Shared):
    addresses: list[GatewayAddress] | None = None
    conditions: list[StatusCondition] | None = None
    listeners: list[ListenerStatus] | None = None


class Gateway(ApiItem):
    spec: GatewaySpec
    status: GatewayStatus | None = None


class ParentReference(_Shared):
    name: str
    group: str = GROUP
    kind: str = "Gateway"
    namespace: str | None = None
    section_name: str | None = None
    port: int | None = None


class BackendReference(_Shared):
    name: str
    group: str = ""
    kind: str = "Service"
    namespace: str | None = None
    port: int | None = None
    weight: int = 1


class RouteRule(_Shared):
    backend_refs: list[BackendReference] | None = None


class RouteSpec(_Shared):
    parent_refs: list[ParentReference] | None = None
    rules: list[RouteRule] | None = None


class RouteStatus(_Shared):
    """parents: as they are, for those of other controllers stay."""

    parents: list[dict[str, Any]] | None = None


class GatewayRoute(ApiItem):
    """A TCPRoute or a UDPRoute."""

    spec: RouteSpec
    status: RouteStatus | None = None


class GrantFrom(_Shared):
    group: str
    kind: str
    namespace: str


class GrantTo(_Shared):
    group: str
    kind: str
    name: str | None = None


class GrantSpec(_Shared):
    sources: list[GrantFrom] = field(name="from")
    to: list[GrantTo]


class ReferenceGrant(ApiItem):
    spec: GrantSpec


class LabelledNamespace(ApiItem):
    """A Namespace."""


class GivenPort(_Shared):
    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0


class GivenServiceSpec(_Shared):
    type: str = "ClusterIP"
    ports: list[GivenPort] | None = None
    external_ips: list[str] | None = field(name="externalIPs", default=None)
    load_balancer_ip: str = field(name="loadBalancerIP", default="")
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ip_families: list[str] | None = None
    ip_family_policy: str = ""
    session_affinity: str = "None"
    session_affinity_config: Any = None
    internal_traffic_policy: str = ""
    traffic_distribution: str | None = None


class GivenIngress(_Shared):
    ip: str = ""
    hostname: str = ""


class GivenBalancer(_Shared):
    ingress: list[GivenIngress] | None = None


class GivenServiceStatus(_Shared):
    load_balancer: GivenBalancer | None = None


class GivenService(ApiItem):
    spec: GivenServiceSpec
    status: GivenServiceStatus | None = None

    @property
    def ingress(self) -> list[GivenIngress]:
        balancer = self.status.load_balancer if self.status else None
        return (balancer.ingress if balancer else None) or []

    @property
    def outer_addresses(self) -> list[str]:
        """External IPs, and those from a load balancer."""
        given = (each.ip for each in self.ingress if each.ip)
        return list(dict.fromkeys((*(self.spec.external_ips or ()), *given)))


class GivenSlicePort(_Shared):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class GivenSlice(ApiItem):
    """An EndpointSlice. endpoints: as they are."""

    address_type: str
    ports: list[GivenSlicePort] | None = None
    endpoints: list[dict[str, Any]] | None = None


class GivenNodeAddress(_Shared):
    type: str = ""
    address: str = ""


class GivenNodeStatus(_Shared):
    addresses: list[GivenNodeAddress] | None = None


class GivenNode(ApiItem):
    status: GivenNodeStatus | None = None


class ImportPort(_Shared):
    port: int
    name: str = ""
    protocol: str = ""

    @property
    def transport(self) -> str:
        return self.protocol or "TCP"


class ImportClientAffinity(_Shared):
    timeout_seconds: int | None = None


class ImportAffinity(_Shared):
    client: ImportClientAffinity | None = field(name="clientIP", default=None)


class ImportSpec(_Shared):
    type: str
    ports: list[ImportPort]
    ips: list[str] | None = None
    ip_families: list[str] | None = None
    session_affinity: str = ""
    session_affinity_config: ImportAffinity | None = None
    internal_traffic_policy: str = ""
    traffic_distribution: str = ""


class ImportStatus(_Shared):
    conditions: list[StatusCondition] | None = None


class ServiceImport(ApiItem):
    spec: ImportSpec
    status: ImportStatus | None = None

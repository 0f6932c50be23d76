# SPDX-License-Identifier: Apache-2.0
"""Services, their ports and the predicates of policy, and ServiceCIDRs."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from ebpflb.model.address import Address, Family, Protocol
from ebpflb.model.extensions.annotated import NOTHING, Annotated

Labels = tuple[tuple[str, str], ...]
"""Key and value of the labels that selectors use, sorted."""


class TrafficPolicy(StrEnum):
    """Cluster: to endpoints in the whole cluster; Local: on this node only."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class Dsr(StrEnum):
    """Which Services have direct server return, unless their annotation says otherwise."""

    OFF = "off"
    ANNOTATED = "annotated"
    ALL = "all"

    def holds_for(self, annotated: bool | None) -> bool:
        """`annotated`: Annotated.dsr."""
        if self is Dsr.ANNOTATED:
            return annotated is True
        return self is Dsr.ALL and annotated is not False


class ServiceName(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


API_SERVER = ServiceName("default", "kubernetes")
"""The API servers of the cluster are the endpoints of this Service."""


class ServicePortName(NamedTuple):
    """Names one port of a Service; port is empty if the API object does not set it."""

    namespace: str
    service: str
    port: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}:{self.port}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class ServicePort:
    """One port of one Service in one family.

    external_policy is Local only where the API gives it an effect. node_port and
    health_check_node_port are 0 if not set. affinity_timeout is in seconds, 0 without session
    affinity. source_ranges are canonical CIDRs of the family and apply to load_balancer_ips only;
    none means all clients. annotated: the same for all ports of a Service.
    """

    name: ServicePortName
    family: Family
    cluster_ip: Address
    port: int
    node_port: int = 0
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    affinity_timeout: int = 0
    source_ranges: tuple[str, ...] = ()
    health_check_node_port: int = 0
    annotated: Annotated = NOTHING

    @property
    def externally_accessible(self) -> bool:
        """Whether it has a frontend that the external traffic policy applies to."""
        return bool(self.node_port or self.external_ips or self.load_balancer_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether any frontend sends any client to endpoints in the whole cluster.

        External frontends always do: external policy Local does not apply to sources here.
        """
        return self.internal_policy is TrafficPolicy.CLUSTER or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether any frontend sends any client to endpoints on this node only."""
        if self.internal_policy is TrafficPolicy.LOCAL:
            return True
        return self.external_policy is TrafficPolicy.LOCAL and self.externally_accessible


@dataclass(frozen=True, slots=True)
class Service:
    """A Service; without ports it is known, but nothing is served for it.

    created: RFC 3339 in UTC, empty if unknown. problems: fields that are invalid and therefore
    ignored, one line each.
    """

    name: ServiceName
    ports: tuple[ServicePort, ...] = ()
    created: str = ""
    labels: Labels = ()
    problems: tuple[str, ...] = ()

    @property
    def annotated(self) -> Annotated:
        """What its annotations ask for; nothing without ports."""
        return self.ports[0].annotated if self.ports else NOTHING

    def annotated_with(self, **fields: Any) -> "Service":
        """The same with other fields of Annotated."""
        annotated = replace(self.annotated, **fields)
        ports = (replace(each, annotated=annotated) for each in self.ports)
        return replace(self, ports=tuple(ports))


@dataclass(frozen=True, slots=True)
class ServiceCidr:
    """A ServiceCIDR; ranges: canonical CIDRs, at most one per family."""

    name: str
    ranges: tuple[str, ...]

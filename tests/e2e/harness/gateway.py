# SPDX-License-Identifier: Apache-2.0
"""A lab in which one node serves every kind of client: all traffic comes by node1.

node2 has no agent and routes Service traffic to node1. So a pod of node2 arrives there with its own
address, which never happens where its own node serves it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ebpflb.lab import Member
from ebpflb.lab.ask import Question, ask_at_once, enough
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PATIENCE, PROTOCOLS

# No Service here has more pods.
_TIMES = enough(2)
# Attempts that reach every pod: with round robin, and with random choice.
FEW_TIMES = 8

# A pod and a process of the node, a pod of another node, an external client, and another node.
CLIENTS = ("pod-1-1", "node1", "pod-2-1", "client", "node2")
LOCAL_CLIENTS = CLIENTS[:2]
OUTSIDE = CLIENTS[2:]

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_IP = (
    "ClusterIP",
    "NodePort",
    "load-balancer IP",
    "external IP",
)
EXTERNAL = (NODE_PORT, LOAD_BALANCER, EXTERNAL_IP)
FRONTENDS = (CLUSTER_IP, *EXTERNAL)


class Way(NamedTuple):
    """Client, frontend, protocol and IP version."""

    client: str
    frontend: str
    protocol: str
    version: int


def ways(client: str, frontend: str) -> Iterator[Way]:
    """In both families, over TCP and UDP."""
    for protocol in PROTOCOLS:
        for version in (4, 6):
            yield Way(client, frontend, protocol, version)


class Gateway:
    """Services with every frontend, served by node1; which pods reply and which client they see."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lab = cluster.lab
        self._owners = dict(self._addresses())

    def serve(self, *pods: str, **spec: Any) -> ServiceSpec:
        """A Service with a ClusterIP, a NodePort, a load-balancer IP and an external IP."""
        new = self.cluster.new("LoadBalancer", **spec)
        external = [self.external_ip(new, version) for version in self.cluster.versions]
        new = replace(new, spec={**new.spec, "externalIPs": external})
        return self.cluster.serve(new, [self.lab.pod(name) for name in pods])

    def place(self, spec: ServiceSpec, frontend: str, version: int) -> tuple[str, int]:
        """The frontend's address and port."""
        if frontend == NODE_PORT:
            return address_of(self.lab.node("node1"), version), spec.node_port
        if frontend == EXTERNAL_IP:
            return self.external_ip(spec, version), spec.port
        give = self.lab.cluster_ip if frontend == CLUSTER_IP else self.lab.ingress_ip
        return give(spec.number, version), spec.port

    def external_ip(self, spec: ServiceSpec, version: int) -> str:
        """An address that the cluster routes to node1, besides the load-balancer IPs."""
        return str(self.lab.layout.ranges_of(version).external()[100 + spec.number])

    def seen(
        self, spec: ServiceSpec, client: str, frontend: str, times: int = _TIMES
    ) -> dict[Way, dict[str, set[str]]]:
        """The pods that reply to a client at a frontend, and the clients that they have seen."""
        found: dict[Way, dict[str, set[str]]] = {}
        for way, said in self._said(spec, client, frontend, times, PATIENCE):
            found[way] = {}
            for each in said:
                pod = each.get("pod") or each["error"]
                owner = self._owner(each.get("client_address", ""))
                found[way].setdefault(pod, set()).add(owner)
        return found

    def fates(
        self, spec: ServiceSpec, client: str, frontend: str, seconds: float
    ) -> dict[Way, str]:
        """The result of one attempt on each path."""
        return {
            way: each.get("error") or each["pod"]
            for way, (each,) in self._said(spec, client, frontend, 1, seconds)
        }

    def _said(
        self, spec: ServiceSpec, client: str, frontend: str, times: int, seconds: float
    ) -> Iterator[tuple[Way, list[dict[str, Any]]]]:
        asked = list(ways(client, frontend))
        questions = [
            Question(*self.place(spec, frontend, way.version), way.protocol, times, seconds)
            for way in asked
        ]
        yield from zip(asked, ask_at_once(self.lab.member(client), questions), strict=True)

    def _owner(self, address: str) -> str:
        return self._owners.get(address, address)

    def _addresses(self) -> Iterator[tuple[str, str]]:
        for member in self.lab.members:
            for address in member.addresses:
                yield address, member.name
        for number, node in enumerate(self.lab.nodes, start=1):
            for ranges in self.lab.layout.ranges:
                yield ranges.pod_gateway(number), node.name


def route_to_services(cluster: Cluster, members: Iterable[Member]) -> None:
    """Route these members' Service traffic by node1."""
    for ranges in cluster.lab.layout.ranges:
        via = address_of(cluster.lab.node("node1"), ranges.version)
        for member in members:
            for target in (ranges.services(), ranges.external()):
                member.exec(["ip", "route", "replace", str(target), "via", via])

# SPDX-License-Identifier: Apache-2.0
"""Sources and targets of the paths: a client and servers on each node, and their Services."""

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ebpflb.errors import EbpflbError
from tests.cluster.harness import workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.harness.place import Place
from tests.cluster.harness.workloads import Object
from tests.e2e.harness.waiting import wait_until

Family = Literal["IPv4", "IPv6"]
Protocol = Literal["TCP", "UDP"]
Client = str | Place

SPACE = "paths"
HOST_PORT = 18080
NODES = ("node1", "node2")

_TIMEOUT = "3s"
# By Service; the client routes them to node1.
_EXTERNAL = {
    "node1": ("203.0.113.1", "2001:db8:113::1"),
    "node2": ("203.0.113.2", "2001:db8:113::2"),
}
_BALANCED = {
    "node1": ("203.0.113.11", "2001:db8:113::11"),
    "node2": ("203.0.113.12", "2001:db8:113::12"),
}


@dataclass(slots=True)
class Subjects:
    """Pods `asker-NODE` and `server-NODE`; Services `server-NODE` and, policy Local, `local-NODE`.

    Each request is one try: a path that needs a second one is broken. A client is the name of a
    pod, or a place: a node for its host processes, the external client.
    balances: something in the cluster assigns load-balancer addresses.
    """

    cluster: Cluster
    ipv6: bool
    balances: bool

    def apply(self) -> None:
        """Create them all, and wait until they are served on both nodes and reached from
        outside.
        """
        workloads.apply(self.cluster, SPACE, [*self._pods(), *self._services()])
        if not self.balances:
            self._announce()
        self._wait_until_served()

    def node(self, name: str) -> ClusterNode:
        """By name."""
        return next(node for node in self.cluster.nodes if node.name == name)

    def cluster_ip(self, service: str, family: Family) -> str:
        """The ClusterIP of one family."""
        path = "{.spec.clusterIPs[*]}"
        found = workloads.field(self.cluster, SPACE, f"service/{service}", path).split()
        return _of_family(found, family)

    def pod_ip(self, pod: str, family: Family) -> str:
        """A pod's address of one family."""
        path = "{.status.podIPs[*].ip}"
        found = workloads.field(self.cluster, SPACE, f"pod/{pod}", path).split()
        return _of_family(found, family)

    def node_port(self, service: str, protocol: Protocol) -> int:
        """The NodePort."""
        path = f'{{.spec.ports[?(@.protocol=="{protocol}")].nodePort}}'
        return int(workloads.field(self.cluster, SPACE, f"service/{service}", path))

    def node_ip(self, node: str, family: Family) -> str:
        """A node's address on the underlay."""
        return self._underlay(self.node(node), family)

    def client_ip(self, family: Family) -> str:
        """The address of the client outside."""
        return self._underlay(self.cluster.client, family)

    def external_ip(self, node: str, family: Family) -> str:
        """The external IP of server-NODE."""
        return _of_family(_EXTERNAL[node], family)

    def balanced_ip(self, node: str, family: Family) -> str:
        """The load-balancer IP of server-NODE."""
        path = "{.status.loadBalancer.ingress[*].ip}"
        target = f"service/server-{node}"
        return wait_until(
            lambda: _of_family(workloads.field(self.cluster, SPACE, target, path).split(), family),
            f"an {family} address of a load balancer for {target}",
        )

    def ask(self, client: Client, protocol: Protocol, host: str, port: int = 80) -> Object | None:
        """The reply to one request; None if there was none in time."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if protocol == "TCP":
            return self._echo(client, "get", "-timeout", _TIMEOUT, f"http://{target}")
        return self._echo(client, "udp", "-timeout", _TIMEOUT, target)

    def ask_with_large_datagram(self, client: Client, host: str, port: int = 80) -> Object | None:
        """The reply to a datagram of three fragments, which is as long."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self._echo(client, "udp", "-timeout", _TIMEOUT, "-size", "4000", target)

    def exchanges_much(self, client: Client, host: str, port: int = 80) -> bool:
        """Whether 200 kB can be echoed over TCP."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._run(client, "post", "-timeout", "5s", f"http://{target}")
        except EbpflbError:
            return False
        return True

    def _underlay(self, place: Place, family: Family) -> str:
        return str(ipaddress.ip_address(place.ip if family == "IPv4" else place.ip6))

    def _echo(self, client: Client, *question: str) -> Object | None:
        try:
            answers = self._run(client, *question)
        except EbpflbError:
            return None
        return answers[0] if answers else None

    def _run(self, client: Client, *question: str) -> list[Object]:
        if isinstance(client, str):
            return workloads.echo_in_pod(self.cluster, SPACE, client, *question)
        return workloads.echo_at(client, *question)

    def _pods(self) -> list[Object]:
        port = {"containerPort": workloads.PORT, "hostPort": HOST_PORT}
        return [
            *(workloads.asker(f"asker-{node}", node) for node in NODES),
            *(workloads.asker(f"server-{node}", node) for node in NODES),
            workloads.asker("host-port", "node1", ports=[port]),
        ]

    def _services(self) -> list[Object]:
        policy = "RequireDualStack" if self.ipv6 else "SingleStack"
        plain = [
            workloads.service(
                f"server-{node}",
                type="LoadBalancer",
                ipFamilyPolicy=policy,
                externalIPs=self._addresses(_EXTERNAL[node]),
            )
            for node in NODES
        ]
        local = [
            workloads.service(
                f"local-{node}",
                f"server-{node}",
                type="NodePort",
                ipFamilyPolicy=policy,
                externalTrafficPolicy="Local",
            )
            for node in NODES
        ]
        return [*plain, *local]

    def _announce(self) -> None:
        """What a load balancer's controller does."""
        for node in NODES:
            ingress = [{"ip": address} for address in self._addresses(_BALANCED[node])]
            patch = json.dumps({"status": {"loadBalancer": {"ingress": ingress}}})
            target = ["service", f"server-{node}", "--subresource=status"]
            self.cluster.kubectl("-n", SPACE, "patch", *target, f"--patch={patch}")

    def _addresses(self, both: tuple[str, str]) -> list[str]:
        return list(both) if self.ipv6 else [both[0]]

    def _wait_until_served(self) -> None:
        families: tuple[Family, ...] = ("IPv4", "IPv6") if self.ipv6 else ("IPv4",)
        for place in (*self.cluster.nodes, self.cluster.client):
            for family in families:
                address = self.balanced_ip("node2", family)
                wait_until(partial(self.ask, place, "TCP", address), f"{address} served", 30)


def _of_family(addresses: Sequence[str], family: Family) -> str:
    version = 4 if family == "IPv4" else 6
    found = (each for each in addresses if ipaddress.ip_address(each).version == version)
    return next(found, "")

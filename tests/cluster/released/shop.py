# SPDX-License-Identifier: Apache-2.0
"""The workload of the shared cluster: a shop with echo servers behind `web`, and client pods."""

from typing import Any

from tests.cluster.harness import workloads
from tests.cluster.harness.cluster import Cluster

SPACE = "shop"


def open_shop(cluster: Cluster) -> None:
    """A client pod on each node, and a pod of `web`."""
    askers = (workloads.asker(f"asker-{node.name}", node.name) for node in cluster.nodes)
    web = [workloads.deployment("web"), workloads.service("web", type="NodePort")]
    workloads.apply(cluster, SPACE, [*web, *askers])


def cluster_ip(cluster: Cluster, service: str) -> str:
    """Of a Service of the shop."""
    return workloads.field(cluster, SPACE, f"service/{service}", "{.spec.clusterIP}")


def node_port(cluster: Cluster, service: str) -> str:
    """Of a Service of the shop."""
    return workloads.field(cluster, SPACE, f"service/{service}", "{.spec.ports[0].nodePort}")


def by_hand(name: str, address: str, **spec: Any) -> list[dict[str, Any]]:
    """A Service and its slice, which need no controller; the pod at that address is ready.

    spec: additional fields of the Service.
    """
    service = workloads.service(name, **spec)
    del service["spec"]["selector"]
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "tcp", "port": workloads.PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]}],
    }
    return [service, piece]

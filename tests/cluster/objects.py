# SPDX-License-Identifier: Apache-2.0
"""Objects for the API server, and whether an agent serves them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.harness.agent import NODE, ClusterAgent
from tests.cluster.harness.control_plane import ControlPlane


@contextmanager
def one_node(name: str) -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet."""
    made = ControlPlane.up(f"{name}-{os.getpid()}", nodes=1)
    try:
        apply(made, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}})
        yield made
    finally:
        made.down()


def apply(control: ControlPlane, *objects: dict[str, Any]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    control.kubectl("apply", "-f", "-", input=json.dumps(listed))


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": ports, **spec},
    }


def piece(name: str, *addresses: str, number: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-{number}",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "nodeName": "node1"} for address in addresses],
    }


def serves(agent: ClusterAgent, name: str, *addresses: str) -> bool:
    wanted = sorted(f"{address}:8080" for address in addresses)
    found = agent.backends(name)
    return bool(found) and all(each == wanted for each in found.values())


# managedFields, which may have any form: the API server takes 10,000 levels of a whole object.
FREE = {
    "deep": b'{"f:a":' * 9990 + b"{}" + b"}" * 9990,
    "bytes": b'{"f:\xff\xfe":{}}',
}

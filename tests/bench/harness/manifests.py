# SPDX-License-Identifier: Apache-2.0
"""Services and EndpointSlices in bulk, as an operator would write them.

The addresses are made up and get no packets: ClusterIPs in 10.64.0.0/14, pods in 10.128.0.0/9.
"""

import json
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

NAMESPACE = "bench"
PORT = 80
TARGET_PORT = 8080

_FIRST_CLUSTER_IP = IPv4Address("10.64.0.0")
_FIRST_POD = IPv4Address("10.128.0.0")

Document = dict[str, Any]


def file_of(number: int) -> str:
    """The file of the Service with this number."""
    return f"{name_of(number)}.json"


def name_of(number: int) -> str:
    """The name of the Service with this number, from 0."""
    return f"service-{number:05}"


def cluster_ip(number: int) -> str:
    """The ClusterIP of the Service with this number."""
    return str(_FIRST_CLUSTER_IP + 1 + number)


def pods(number: int, count: int, first: int = 0) -> list[str]:
    """Endpoint addresses of a Service, disjoint from other Services': at most 128, from `first`."""
    return [str(_FIRST_POD + 128 * number + first + place) for place in range(count)]


def service(
    name: str, address: str, *, port: int = PORT, target_port: int = TARGET_PORT, node_port: int = 0
) -> Document:
    """A Service with one TCP port, of type NodePort when it has one."""
    entry = {"name": "main", "port": port, "targetPort": target_port, "protocol": "TCP"}
    if node_port:
        entry["nodePort"] = node_port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "type": "NodePort" if node_port else "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ports": [entry],
        },
    }


def endpoint_slice(
    name: str, addresses: Sequence[str], nodes: Sequence[str], *, port: int = TARGET_PORT
) -> Document:
    """The only slice of a Service; its endpoints alternate between the nodes."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"{name}-1",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": nodes[place % len(nodes)],
            }
            for place, address in enumerate(addresses)
        ],
    }


def listed(documents: Sequence[Document]) -> bytes:
    """One file for several objects."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}).encode()


def numbered(number: int, endpoints: int, nodes: Sequence[str], first: int = 0) -> bytes:
    """The manifest of one made-up Service: itself and its slice."""
    name = name_of(number)
    addresses = pods(number, endpoints, first)
    return listed(
        [service(name, cluster_ip(number)), endpoint_slice(name, addresses, nodes)],
    )


def write_unfinished(directory: Path, file: str, content: bytes) -> Path:
    """Write a file that a watcher ignores until it is renamed to `file`."""
    unfinished = directory / f".{file}.unfinished"
    unfinished.write_bytes(content)
    return unfinished


def write(directory: Path, file: str, content: bytes) -> None:
    """Put a file into a watched directory atomically."""
    write_unfinished(directory, file, content).rename(directory / file)


def fill(directory: Path, count: int, endpoints: int, nodes: Sequence[str]) -> None:
    """Write `count` made-up Services, one file each."""
    write_all(directory, count, lambda number: numbered(number, endpoints, nodes))


def write_all(directory: Path, count: int, manifest: Callable[[int], bytes]) -> None:
    """One file for each Service, by its number."""
    for number in range(count):
        write(directory, file_of(number), manifest(number))

# SPDX-License-Identifier: Apache-2.0
"""The lab as Kubernetes objects: its Nodes, and Services in front of its pods. Plain dicts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ebpflb.errors import ConfigError
from ebpflb.lab.layout import Layout, Ranges, Seat
from ebpflb.words.annotations import PREFIX

_SUFFIXES = (".yaml", ".yml", ".json")
_NAMESPACE = "default"
# The addresses of Service 1 are the ones after this in their ranges.
_FIRST_ADDRESS = 10


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A Service in front of pods of the lab, TCP and UDP on one port.

    number: makes its addresses unique within the lab: the ClusterIP and, with type LoadBalancer,
    the ingress IP, in each family. spec: further fields of the Service's spec. annotations: without
    their prefix ebpflb.io/.
    """

    name: str
    number: int
    kind: str = "ClusterIP"
    port: int = 80
    node_port: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def examples(layout: Layout) -> list[dict[str, Any]]:
    """One Service of each kind. The endpoints of echo-local are on the first node only."""
    everywhere = [pod for node in layout.nodes() for pod in layout.pods(node.node)]
    on_first = list(layout.pods(1))
    local = {"externalTrafficPolicy": "Local"}
    chosen = (
        (ServiceSpec("echo", 1), everywhere),
        (ServiceSpec("echo-nodeport", 2, "NodePort", node_port=30080), everywhere),
        (ServiceSpec("echo-local", 3, "NodePort", node_port=30081, spec=local), on_first),
        (ServiceSpec("echo-lb", 4, "LoadBalancer", node_port=30082), everywhere),
    )
    return [made for spec, pods in chosen for made in service_with_slices(layout, spec, pods)]


def nodes(layout: Layout) -> list[dict[str, Any]]:
    return [_node(layout, seat) for seat in layout.nodes()]


def service_with_slices(
    layout: Layout, spec: ServiceSpec, pods: Sequence[Seat]
) -> list[dict[str, Any]]:
    """A Service and one EndpointSlice per family, with all `pods` ready."""
    return [service(layout, spec), *(_slice(layout, spec, each, pods) for each in layout.ranges)]


def service(layout: Layout, spec: ServiceSpec) -> dict[str, Any]:
    """A Service as the API server would return it."""
    addresses = [cluster_ip(ranges, spec.number) for ranges in layout.ranges]
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": spec.name, "namespace": _NAMESPACE},
        "spec": {
            "type": spec.kind,
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": [_family(ranges) for ranges in layout.ranges],
            "ipFamilyPolicy": "RequireDualStack" if len(addresses) > 1 else "SingleStack",
            "selector": {"app": spec.name},
            "ports": [_service_port(layout, spec, each) for each in ("TCP", "UDP")],
            **spec.spec,
        },
    }
    if spec.annotations:
        annotations = {f"{PREFIX}{name}": text for name, text in spec.annotations.items()}
        made["metadata"]["annotations"] = annotations
    if spec.kind == "LoadBalancer":
        ingress = [{"ip": ingress_ip(ranges, spec.number)} for ranges in layout.ranges]
        made["status"] = {"loadBalancer": {"ingress": ingress}}
    return made


def cluster_ip(ranges: Ranges, number: int) -> str:
    return str(ranges.services()[_FIRST_ADDRESS + number])


def ingress_ip(ranges: Ranges, number: int) -> str:
    return str(ranges.external()[_FIRST_ADDRESS + number])


def dump(objects: Iterable[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)


def files_of(path: Path) -> dict[str, bytes]:
    """The manifests at a path, a file or a directory, by file name. ConfigError if there are none.

    Hidden files and other suffixes in a directory are ignored.
    """
    try:
        candidates = sorted(path.iterdir()) if path.is_dir() else [path]
        found = {
            each.name: each.read_bytes()
            for each in candidates
            if each.suffix in _SUFFIXES and not (each.name.startswith(".") or each.is_dir())
        }
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{path}: no manifest (a file ending in {', '.join(_SUFFIXES)})")
    return found


def write_atomically(directory: Path, name: str, content: bytes) -> None:
    """Whoever watches the directory sees the old file or the new one."""
    unfinished = directory / f".{name}.{os.getpid()}"
    unfinished.write_bytes(content)
    unfinished.replace(directory / name)


def _node(layout: Layout, seat: Seat) -> dict[str, Any]:
    labels = {
        "kubernetes.io/hostname": seat.name,
        "topology.kubernetes.io/zone": layout.zone(seat.node),
    }
    pod_ranges = [str(ranges.pods(seat.node)) for ranges in layout.ranges]
    addresses = [{"type": "InternalIP", "address": each} for each in layout.addresses(seat)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": seat.name, "labels": labels},
        "spec": {"podCIDR": pod_ranges[0], "podCIDRs": pod_ranges},
        "status": {"addresses": [*addresses, {"type": "Hostname", "address": seat.name}]},
    }


def _service_port(layout: Layout, spec: ServiceSpec, protocol: str) -> dict[str, Any]:
    port: dict[str, Any] = {
        "name": protocol.lower(),
        "protocol": protocol,
        "port": spec.port,
        "targetPort": layout.config.port,
    }
    return port | ({"nodePort": spec.node_port} if spec.node_port else {})


def _slice(
    layout: Layout, spec: ServiceSpec, ranges: Ranges, pods: Sequence[Seat]
) -> dict[str, Any]:
    family = _family(ranges)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{spec.name}-{family.lower()}",
            "namespace": _NAMESPACE,
            "labels": {"kubernetes.io/service-name": spec.name},
        },
        "addressType": family,
        "ports": [
            {"name": each.lower(), "protocol": each, "port": layout.config.port}
            for each in ("TCP", "UDP")
        ],
        "endpoints": [
            {
                "addresses": [ranges.seat(pod)],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node{pod.node}",
                "zone": layout.zone(pod.node),
                "targetRef": {"kind": "Pod", "namespace": _NAMESPACE, "name": pod.name},
            }
            for pod in pods
        ],
    }


def _family(ranges: Ranges) -> str:
    return f"IPv{ranges.version}"

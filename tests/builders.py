# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices and Nodes for tests: as manifests (dicts) and as model objects.

The defaults of the two forms describe the same objects: Service default/web on 10.96.0.10:80,
slice web-1 with one ready endpoint 10.1.0.1:8080 on NODE.
"""

import json
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

from ebpflb.model.address import Address, Family, Protocol, family_of, parse_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, PortEndpoint, SlicePort
from ebpflb.model.extensions.annotated import Annotated
from ebpflb.model.node import Node
from ebpflb.model.service import Service, ServiceName, ServicePort, ServicePortName

Manifest = dict[str, Any]

NODE = "node-a"
OTHER_NODE = "node-b"
CLUSTER_IP = "10.96.0.10"
POD_IP = "10.1.0.1"


def address(text: str) -> Address:
    """An address of the model."""
    return parse_address(text)


# Manifests


def service_manifest(
    name: str = "web",
    *,
    namespace: str = "default",
    cluster_ip: str = CLUSTER_IP,
    ports: list[Manifest] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    """A Service; further keywords are fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, namespace, labels),
        "spec": {
            "clusterIP": cluster_ip,
            "ports": [port_manifest()] if ports is None else ports,
            **spec,
        },
    }


def port_manifest(port: int = 80, name: str = "", protocol: str = "TCP", **more: Any) -> Manifest:
    """A port of a Service."""
    return {"name": name, "port": port, "protocol": protocol, **more}


def load_balancer_status(*ips: str) -> Manifest:
    """The status of a Service with these load-balancer IPs."""
    return {"loadBalancer": {"ingress": [{"ip": ip} for ip in ips]}}


def slice_manifest(
    name: str = "web-1",
    *,
    service: str = "web",
    namespace: str = "default",
    ports: list[Manifest] | None = None,
    endpoints: list[Manifest] | None = None,
    **fields: Any,
) -> Manifest:
    """An EndpointSlice; further keywords are its top-level fields."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(name, namespace, {"kubernetes.io/service-name": service}),
        "addressType": "IPv4",
        "ports": [port_manifest(8080)] if ports is None else ports,
        "endpoints": [endpoint_manifest()] if endpoints is None else endpoints,
        **fields,
    }


def endpoint_manifest(ip: str = POD_IP, node: str | None = NODE, **fields: Any) -> Manifest:
    """An endpoint of a slice; further keywords are its fields, conditions among them."""
    return {"addresses": [ip], "nodeName": node, "conditions": {"ready": True}, **fields}


def node_manifest(name: str = NODE, *, zone: str = "", addresses: tuple[str, ...] = ()) -> Manifest:
    """A Node with internal IPs."""
    labels = {"topology.kubernetes.io/zone": zone} if zone else None
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"addresses": [{"type": "InternalIP", "address": ip} for ip in addresses]},
    }


def service_cidr_manifest(name: str = "kubernetes", *cidrs: str) -> Manifest:
    """A ServiceCIDR."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }


def list_manifest(*items: Manifest) -> Manifest:
    """A List of objects."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def write_manifests(path: Path, *manifests: Manifest) -> Path:
    """Replace a file at once with these objects: *.json holds a List, others are YAML."""
    fresh = path.with_name("fresh-manifests")
    if path.suffix == ".json":
        fresh.write_text(json.dumps(list_manifest(*manifests)))
    else:
        fresh.write_text(yaml.safe_dump_all(manifests))
    return fresh.rename(path)


def bulk_manifest(index: int, endpoints: int) -> Manifest:
    """A List of one Service and its slice, different for each index below 60,000."""
    name = f"service-{index}"
    cluster_ip = str(ip_address("10.96.0.0") + index + 1)
    first = ip_address("11.0.0.0") + index * endpoints
    pods = [
        endpoint_manifest(str(first + count), f"node-{(index + count) % 100}")
        for count in range(endpoints)
    ]
    return list_manifest(
        service_manifest(name, cluster_ip=cluster_ip),
        slice_manifest(f"{name}-1", service=name, endpoints=pods),
    )


def _metadata(name: str, namespace: str, labels: dict[str, str] | None) -> Manifest:
    return {"name": name, "namespace": namespace, "labels": labels or {}}


# Model objects


def port_name(
    port: str = "", protocol: Protocol = Protocol.TCP, *, service: str = "web"
) -> ServicePortName:
    """A Service port name in namespace default."""
    return ServicePortName("default", service, port, protocol)


def service_port(cluster_ip: str = CLUSTER_IP, **fields: Any) -> ServicePort:
    """Port 80 of Service default/web; keywords are fields of ServicePort."""
    virtual = address(cluster_ip)
    port = ServicePort(name=port_name(), family=family_of(virtual), cluster_ip=virtual, port=80)
    return replace(port, **fields)


def service(name: str = "web", *ports: ServicePort, **fields: Any) -> Service:
    """A Service in namespace default; without ports it has the one of service_port().

    Keywords are fields of Service, or of Annotated.
    """
    renamed = (
        replace(port, name=port.name._replace(service=name)) for port in ports or (service_port(),)
    )
    own = {field: fields.pop(field) for field in Annotated.__slots__ if field in fields}
    found = Service(ServiceName("default", name), tuple(renamed), **fields)
    return found.annotated_with(**own) if own else found


def endpoint(ip: str = POD_IP, node: str | None = NODE, **fields: Any) -> Endpoint:
    """A ready endpoint; keywords are fields of Endpoint."""
    return Endpoint(address(ip), node_name=node, **fields)


def terminating(ip: str = POD_IP, node: str | None = NODE, **fields: Any) -> Endpoint:
    """An endpoint that is not ready, but still serves while it terminates."""
    return endpoint(ip, node, ready=False, terminating=True, **fields)


def port_endpoint(each: Endpoint, port: int = 8080) -> PortEndpoint:
    """An endpoint with its port number."""
    return PortEndpoint(each, port)


def endpoint_slice(name: str = "web-1", *endpoints: Endpoint, **fields: Any) -> EndpointSlice:
    """A slice of default/web, port 8080; keywords are fields of EndpointSlice."""
    piece = EndpointSlice(
        namespace="default",
        name=name,
        service="web",
        family=Family.IPV4,
        ports=(SlicePort("", Protocol.TCP, 8080),),
        endpoints=PackedEndpoints(endpoints),
    )
    return replace(piece, **fields)


def node(name: str = NODE, *, zone: str = "", addresses: tuple[str, ...] = ()) -> Node:
    """A Node."""
    return Node(name, zone, tuple(map(address, addresses)))

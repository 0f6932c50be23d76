# SPDX-License-Identifier: Apache-2.0
"""The model -> API objects, with the fields that decode() reads and no others.

decode() makes the same object of them again, without its problems. What decode() has left out, such
as the type of a Service, is written as whatever has no other effect.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ebpflb.model.address import Address, format_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.syntax import text_of
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, key_of
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.service import Service, ServiceCidr, ServicePort
from ebpflb.source import decode
from ebpflb.source.api_types import API_VERSIONS, Fields
from ebpflb.source.what_counts import SERVICE_LABEL
from ebpflb.words.annotations import SLICE_WEIGHT, SOCKET_LB, WEIGHT


def encode(item: ApiObject) -> Fields:
    key = key_of(item)
    document, metadata = _ENCODERS[type(item)](item)
    named = {"namespace": key.namespace, "name": key.name, **metadata}
    return {
        "apiVersion": API_VERSIONS[key.kind],
        "kind": str(key.kind),
        "metadata": _given(named),
        **_given(document),
    }


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are empty: absent, they mean the same."""
    return {name: value for name, value in fields.items() if value not in ("", 0, None, [], {})}


_Parts = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The document, and fields of its metadata."""


def _service(item: Service) -> _Parts:
    ports, spec = item.ports, {}
    # The first port, once per family.
    first = [each for each in ports if each.name == ports[0].name]
    if ports:
        addresses = [format_address(each.cluster_ip) for each in first]
        spec = _given(
            {
                # With it, every other field counts.
                "type": "LoadBalancer",
                "clusterIP": addresses[0],
                "clusterIPs": addresses,
                "ipFamilies": [each.family.text for each in first],
                "ports": [_port(each) for each in ports if each.family is ports[0].family],
                "externalIPs": _texts(tuple(ip for each in first for ip in each.external_ips)),
                "loadBalancerSourceRanges": [text for each in first for text in each.source_ranges],
                "internalTrafficPolicy": str(ports[0].internal_policy),
                "externalTrafficPolicy": str(ports[0].external_policy),
                "healthCheckNodePort": ports[0].health_check_node_port,
                **_affinity(ports[0].affinity_timeout),
            }
        )
    balancers = _texts(tuple(ip for each in first for ip in each.load_balancer_ips))
    status = {"loadBalancer": {"ingress": [{"ip": text} for text in balancers]}}
    metadata = {
        "creationTimestamp": item.created,
        "labels": dict(item.labels),
        "annotations": text_of(item.annotated),
    }
    return {"spec": spec, "status": status if balancers else {}}, metadata


def _port(port: ServicePort) -> Fields:
    _, _, name, protocol = port.name
    found = {"name": name, "protocol": protocol.name, "port": port.port, "nodePort": port.node_port}
    return _given(found)


def _affinity(timeout: int) -> Fields:
    if not timeout:
        return {}
    config = {"clientIP": {"timeoutSeconds": timeout}}
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}


def _endpoint_slice(item: EndpointSlice) -> _Parts:
    ports = [
        # An absent name would mean none of the Service's ports.
        {"name": each.name, "protocol": each.protocol.name, "port": each.port}
        for each in item.ports
    ]
    document = {
        "addressType": item.family.text,
        "ports": ports,
        "endpoints": list(map(_endpoint, item.endpoints)),
    }
    given = {} if item.weight is None else {SLICE_WEIGHT: str(item.weight)}
    return document, {"labels": {SERVICE_LABEL: item.service}, "annotations": given}


def _endpoint(each: Endpoint) -> Fields:
    usual = Endpoint(each.address)
    conditions = {
        name: getattr(each, name)
        for name in ("ready", "serving", "terminating")
        if getattr(each, name) is not getattr(usual, name)
    }
    namespace, _, name = each.pod.partition("/")
    hints = {"forZones": _hints(each.zone_hints), "forNodes": _hints(each.node_hints)}
    pod = {"kind": "Pod", "namespace": namespace, "name": name} if name else {}
    return _given(
        {
            "addresses": _texts((each.address,)),
            "conditions": conditions,
            "nodeName": each.node_name,
            "zone": each.zone,
            "hints": _given(hints),
            "targetRef": pod,
        }
    )


def _hints(names: tuple[str, ...]) -> list[Fields]:
    return [{"name": name} for name in names]


def _node(item: Node) -> _Parts:
    internal = tuple(each for each in item.addresses if each not in item.external)
    addresses = [
        {"type": kind, "address": text}
        for kind, some in (("InternalIP", internal), ("ExternalIP", item.external))
        for text in _texts(some)
    ]
    taints = [] if item.eligible else [{"key": decode.LEAVING_TAINT}]
    spec = _given({"taints": taints, "podCIDRs": list(item.pod_ranges)})
    labels = _given({decode.ZONE_LABEL: item.zone})
    return {"spec": spec, "status": {"addresses": addresses}}, {"labels": labels}


def _service_cidr(item: ServiceCidr) -> _Parts:
    return {"spec": {"cidrs": list(item.ranges)}}, {}


def _pod(item: Pod) -> _Parts:
    kind, _, name = item.workload.partition("/")
    owner = {"controller": True, "kind": kind, "name": name}
    metadata = {
        "uid": item.uid,
        "annotations": _socket_lb(item.socket_lb),
        "ownerReferences": [owner] if kind else [],
    }
    ips = [{"ip": text} for text in _texts(item.addresses)]
    return {"status": _given({"podIPs": ips})}, metadata


def _namespace(item: PodNamespace) -> _Parts:
    return {}, {"labels": dict(item.labels), "annotations": _socket_lb(item.socket_lb)}


def _pod_labels(item: PodLabels) -> _Parts:
    weight = {} if item.weight is None else {WEIGHT: str(item.weight)}
    return {}, {"labels": dict(item.labels), "annotations": weight}


def _socket_lb(has_socket_lb: bool | None) -> Fields:
    return _given({SOCKET_LB: _switch(has_socket_lb)})


def _switch(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


def _texts(addresses: tuple[Address, ...]) -> list[str]:
    return list(map(format_address, addresses))


_ENCODERS: dict[type, Callable[[Any], _Parts]] = {
    Service: _service,
    EndpointSlice: _endpoint_slice,
    Node: _node,
    ServiceCidr: _service_cidr,
    Pod: _pod,
    PodNamespace: _namespace,
    PodLabels: _pod_labels,
}

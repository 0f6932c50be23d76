# SPDX-License-Identifier: Apache-2.0
"""API objects (from JSON or YAML) -> the model, with the API server's defaults."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from ebpflb.errors import SourceError
from ebpflb.model.address import (
    WILDCARD,
    Address,
    Family,
    Protocol,
    family_of,
    parse_address,
    parse_range,
)
from ebpflb.model.changes import ApiObject, Kind
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.model.node import Node
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.selection import PROXY_LABEL
from ebpflb.model.service import (
    Labels,
    Service,
    ServiceCidr,
    ServiceName,
    ServicePort,
    ServicePortName,
    TrafficPolicy,
)
from ebpflb.source import annotations
from ebpflb.source.fields import (
    FieldError,
    Fields,
    Metadata,
    as_fields,
    as_text,
    checked_label,
    choice_at,
    flag_at,
    identity,
    is_name,
    list_at,
    name_at,
    number_at,
    object_at,
    read_metadata,
    text_at,
)
from ebpflb.source.workload import workload_of

API_VERSIONS: Mapping[str, str] = {
    Kind.SERVICE: "v1",
    Kind.ENDPOINT_SLICE: "discovery.k8s.io/v1",
    Kind.NODE: "v1",
    Kind.SERVICE_CIDR: "networking.k8s.io/v1",
    Kind.POD: "v1",
    Kind.NAMESPACE: "v1",
}

_HEADLESS_LABEL = "service.kubernetes.io/headless"
SERVICE_LABEL = "kubernetes.io/service-name"
ZONE_LABEL = "topology.kubernetes.io/zone"
_FINISHED = ("Succeeded", "Failed")
# The cluster autoscaler is about to remove the node; as in kube-proxy's NodeEligible.
LEAVING_TAINT = "ToBeDeletedByClusterAutoscaler"

_LAST_PORT = 65535
_AFFINITY_DEFAULT = 10800
_AFFINITY_LAST = 86400

_WILDCARDS = frozenset(WILDCARD.values())
_FAMILIES = {family.text: family for family in Family}
_ADDRESS_TYPES = {**_FAMILIES, "FQDN": None}
_PROTOCOLS = {member.name: member for member in Protocol}
_POLICIES = {member.value: member for member in TrafficPolicy}
_TYPES = {name: name for name in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")}
_AFFINITIES = {"None": False, "ClientIP": True}
_IP_MODES = {"VIP": True, "Proxy": False}


class _Port(NamedTuple):
    name: str
    protocol: Protocol
    port: int
    node_port: int


def kind_of(document: Fields) -> Kind | None:
    """The kind of an object, None for a kind that is not read here.

    Raises SourceError if it has no kind. Without an apiVersion, the kind alone decides.
    """
    kind = document.get("kind")
    if not isinstance(kind, str) or not kind:
        raise SourceError("kind: is missing, so this is not a Kubernetes object")
    version = document.get("apiVersion")
    if version is not None and version != API_VERSIONS.get(kind):
        return None
    return Kind(kind) if kind in API_VERSIONS else None


def decode(document: Fields, label_keys: Collection[str] = ()) -> ApiObject | None:
    """The object that a document describes; None if it does not matter to a service proxy.

    That is an object of another kind, or a slice that is headless, has no Service or has host
    names. A Service that is for another proxy or has no ClusterIP has no ports here. IP addresses
    and CIDRs that cannot be parsed are skipped; so are 0.0.0.0 and ::, except where the model
    refuses them. label_keys: the labels of Services and Namespaces to keep; with PROXY_LABEL, the
    selection decides which Services are for another proxy. Raises SourceError, which names the
    object and the field.
    """
    kind = kind_of(document)
    if kind is None:
        return None
    try:
        metadata = object_at(document, "metadata", partial(read_metadata, kind))
        if PROXY_LABEL in label_keys:
            metadata = _without(PROXY_LABEL, metadata)
        found = _DECODERS[kind](metadata, document)
        if label_keys and isinstance(found, Service | PodNamespace):
            return replace(found, labels=_kept_labels(document, label_keys))
    except FieldError as error:
        raise SourceError(f"{identity(kind, document)}: {error}") from error
    return found


def _without(label: str, metadata: Metadata) -> Metadata:
    labels = {key: value for key, value in metadata.labels.items() if key != label}
    return metadata._replace(labels=labels)


def _kept_labels(document: Fields, keys: Iterable[str]) -> Labels:
    def kept(labels: Fields) -> Labels:
        return tuple((key, text_at(labels, key)) for key in sorted(keys) if key in labels)

    return object_at(document, "metadata", lambda fields: object_at(fields, "labels", kept))


def _node(metadata: Metadata, document: Fields) -> Node:
    zone = text_at(metadata.labels, ZONE_LABEL)
    taints = object_at(document, "spec", _taints)
    internal, external = object_at(document, "status", _node_addresses)
    return Node(
        metadata.name,
        zone,
        internal + external,
        eligible=not metadata.deleted and LEAVING_TAINT not in taints,
        external=external,
        pod_ranges=object_at(document, "spec", partial(_cidrs, "podCIDRs")),
    )


def _taints(spec: Fields) -> list[str]:
    return list_at(spec, "taints", _taint_key)


def _taint_key(entry: Fields) -> str:
    return text_at(as_fields(entry), "key")


def _node_addresses(status: Fields) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    """Internal addresses, and all others."""
    entries = list_at(status, "addresses", as_fields)
    internal, external = (
        _addresses(text_at(entry, "address") for entry in entries if entry.get("type") == kind)
        for kind in ("InternalIP", "ExternalIP")
    )
    return internal, tuple(address for address in external if address not in internal)


def _service_cidr(metadata: Metadata, document: Fields) -> ServiceCidr:
    """Ignores its conditions, as kube-proxy does."""
    return ServiceCidr(metadata.name, object_at(document, "spec", partial(_cidrs, "cidrs")))


def _cidrs(name: str, spec: Fields) -> tuple[str, ...]:
    found = []
    for text in list_at(spec, name, as_text):
        with suppress(ValueError):
            found.append(parse_range(text)[1])
    return tuple(found)


def _pod_of_node(metadata: Metadata, document: Fields) -> Pod:
    is_on_host = object_at(document, "spec", lambda spec: flag_at(spec, "hostNetwork", False))
    ips = [] if is_on_host else object_at(document, "status", _pod_ips)
    told = annotations.socket_lb(document), workload_of(metadata, document), metadata.uid
    return Pod(metadata.namespace, metadata.name, _addresses(ips), *told)


def _pod_ips(status: Fields) -> list[str]:
    """None for a finished pod: another pod may have its addresses by now."""
    if text_at(status, "phase") in _FINISHED:
        return []
    return list_at(status, "podIPs", lambda entry: text_at(as_fields(entry), "ip"))


def _namespace(metadata: Metadata, document: Fields) -> PodNamespace:
    return PodNamespace(metadata.name, annotations.socket_lb(document))


def _service(metadata: Metadata, document: Fields) -> Service:
    name = ServiceName(metadata.namespace, metadata.name)
    if PROXY_LABEL in metadata.labels:
        return Service(name, created=metadata.created)
    ingress_ips = object_at(document, "status", _ingress_ips)
    threshold, problems = annotations.ejection(document)
    ports = object_at(document, "spec", partial(_service_ports, name, ingress_ips, threshold))
    chosen, wrong_scheduler = annotations.scheduler(document)
    has_dsr, wrong_dsr = annotations.dsr(document)
    problems += wrong_scheduler + wrong_dsr
    return Service(name, ports, metadata.created, (), chosen, has_dsr, problems)


def _ingress_ips(status: Fields) -> tuple[Address, ...]:
    def ips(balancer: Fields) -> list[str]:
        return list_at(balancer, "ingress", _ingress_ip)

    return _asked_for(object_at(status, "loadBalancer", ips))


def _ingress_ip(entry: Fields) -> str:
    vip = choice_at(as_fields(entry), "ipMode", _IP_MODES, True)
    return text_at(entry, "ip") if vip else ""


def _service_ports(
    name: ServiceName, ingress_ips: tuple[Address, ...], ejection: int | None, spec: Fields
) -> tuple[ServicePort, ...]:
    cluster_ips = _cluster_ips(spec)
    if not cluster_ips:
        return ()
    external_ips = _asked_for(list_at(spec, "externalIPs", as_text))
    ranges = _source_ranges(spec)
    external_policy = _external_policy(spec)
    make = partial(
        ServicePort,
        internal_policy=choice_at(spec, "internalTrafficPolicy", _POLICIES, TrafficPolicy.CLUSTER),
        external_policy=external_policy,
        affinity_timeout=_affinity_timeout(spec),
        health_check_node_port=_health_check_node_port(spec, external_policy),
        ejection=ejection,
    )
    return tuple(
        make(
            name=ServicePortName(*name, port.name, port.protocol),
            family=family,
            cluster_ip=cluster_ip,
            port=port.port,
            node_port=port.node_port,
            external_ips=_of_family(family, external_ips),
            load_balancer_ips=_of_family(family, ingress_ips),
            source_ranges=ranges.get(family, ()),
        )
        for port in _ports(spec)
        for family, cluster_ip in cluster_ips.items()
    )


def _cluster_ips(spec: Fields) -> dict[Family, Address]:
    first = text_at(spec, "clusterIP")
    if first in ("", "None") or _type(spec) == "ExternalName":
        return {}
    families = list_at(spec, "ipFamilies", _family)
    if not families:
        return {family_of(address): address for address in _addresses([first])}
    texts = list_at(spec, "clusterIPs", as_text) or [first]
    found: dict[Family, Address] = {}
    for family, text in zip(families, texts, strict=False):
        for address in _of_family(family, _addresses([text])):
            found.setdefault(family, address)
    return found


def _family(value: object) -> Family:
    text = as_text(value)
    if text not in _FAMILIES:
        raise FieldError("", f"must be one of {', '.join(_FAMILIES)}")
    return _FAMILIES[text]


def _type(spec: Fields) -> str:
    return choice_at(spec, "type", _TYPES, "ClusterIP")


def _external_policy(spec: Fields) -> TrafficPolicy:
    policy = choice_at(spec, "externalTrafficPolicy", _POLICIES, TrafficPolicy.CLUSTER)
    counts = _type(spec) in ("LoadBalancer", "NodePort") or spec.get("externalIPs")
    return policy if counts else TrafficPolicy.CLUSTER


def _health_check_node_port(spec: Fields, external_policy: TrafficPolicy) -> int:
    port = number_at(spec, "healthCheckNodePort", _LAST_PORT)
    counts = _type(spec) == "LoadBalancer" and external_policy is TrafficPolicy.LOCAL
    return port if counts else 0


def _affinity_timeout(spec: Fields) -> int:
    if not choice_at(spec, "sessionAffinity", _AFFINITIES, False):
        return 0

    def seconds(client_ip: Fields) -> int:
        return number_at(client_ip, "timeoutSeconds", _AFFINITY_LAST) or _AFFINITY_DEFAULT

    def of_client_ip(config: Fields) -> int:
        return object_at(config, "clientIP", seconds)

    return object_at(spec, "sessionAffinityConfig", of_client_ip)


def _source_ranges(spec: Fields) -> dict[Family, tuple[str, ...]]:
    found: dict[Family, tuple[str, ...]] = {}
    unrestricted = set()
    for text in list_at(spec, "loadBalancerSourceRanges", as_text):
        try:
            family, canonical = parse_range(text)
        except ValueError:
            continue
        if canonical.endswith("/0"):
            unrestricted.add(family)
        found[family] = (*found.get(family, ()), canonical)
    return {family: ranges for family, ranges in found.items() if family not in unrestricted}


def _ports(spec: Fields) -> list[_Port]:
    ports = list_at(spec, "ports", _port)
    seen = set()
    for index, port in enumerate(ports):
        if port[:2] in seen:
            raise FieldError(f"ports[{index}].name", "is used twice with this protocol")
        seen.add(port[:2])
    return ports


def _port(entry: Fields) -> _Port:
    name = text_at(as_fields(entry), "name")
    if name:
        checked_label(name, "name")
    port = number_at(entry, "port", _LAST_PORT)
    if not port:
        raise FieldError("port", "is missing")
    protocol = choice_at(entry, "protocol", _PROTOCOLS, Protocol.TCP)
    return _Port(name, protocol, port, number_at(entry, "nodePort", _LAST_PORT))


def _endpoint_slice(metadata: Metadata, document: Fields) -> EndpointSlice | None:
    service = text_at(metadata.labels, SERVICE_LABEL)
    if not service or _HEADLESS_LABEL in metadata.labels:
        return None
    name_at(document, "addressType")
    family = choice_at(document, "addressType", _ADDRESS_TYPES, None)
    if family is None:
        return None
    ports = list_at(document, "ports", _slice_port)
    endpoints = list_at(document, "endpoints", partial(_endpoint, family))
    return EndpointSlice(
        namespace=metadata.namespace,
        name=metadata.name,
        service=service,
        family=family,
        ports=_shared(tuple(filter(None, ports))),
        endpoints=PackedEndpoints(filter(None, endpoints)),
    )


@lru_cache(maxsize=8192)
def _shared(ports: tuple[SlicePort, ...]) -> tuple[SlicePort, ...]:
    """Share one copy between all slices with the same ports."""
    return ports


def _slice_port(entry: Fields) -> SlicePort | None:
    port = number_at(as_fields(entry), "port", _LAST_PORT)
    protocol = choice_at(entry, "protocol", _PROTOCOLS, Protocol.TCP)
    name = text_at(entry, "name")
    if not port or entry.get("name") is None:
        return None
    return SlicePort(name, protocol, port)


def _endpoint(family: Family, entry: Fields) -> Endpoint | None:
    texts = list_at(as_fields(entry), "addresses", as_text)
    ready, serving, terminating = object_at(entry, "conditions", _conditions)
    zone_hints, node_hints = object_at(entry, "hints", _hints)
    node_name = text_at(entry, "nodeName") or None
    for address in _of_family(family, _addresses(texts[:1])):
        return Endpoint(
            *(address, ready, serving, terminating, node_name, zone_hints, node_hints),
            zone=text_at(entry, "zone"),
            pod=object_at(entry, "targetRef", _pod),
        )
    return None


def _pod(reference: Fields) -> str:
    if text_at(reference, "kind") != "Pod":
        return ""
    names = text_at(reference, "namespace"), text_at(reference, "name")
    return "/".join(names) if all(map(is_name, names)) else ""


def _conditions(fields: Fields) -> tuple[bool, bool, bool]:
    ready = flag_at(fields, "ready", True)
    return ready, flag_at(fields, "serving", True), flag_at(fields, "terminating", False)


def _hints(fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not fields:
        return (), ()
    zones = list_at(fields, "forZones", _hinted_name)
    return tuple(zones), tuple(list_at(fields, "forNodes", _hinted_name))


def _hinted_name(entry: Fields) -> str:
    return name_at(as_fields(entry), "name")


def _addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """The valid addresses, each once, without the wildcards, which stand for NodePorts."""
    return tuple(address for address in _asked_for(texts) if address not in _WILDCARDS)


def _asked_for(texts: Iterable[str]) -> tuple[Address, ...]:
    """With the wildcards, which the model refuses."""
    found: dict[Address, None] = {}
    for text in texts:
        with suppress(ValueError):
            found[parse_address(text)] = None
    return tuple(found)


def _of_family(family: Family, addresses: tuple[Address, ...]) -> tuple[Address, ...]:
    return tuple(address for address in addresses if family_of(address) is family)


_DECODERS: dict[Kind, Callable[[Metadata, Fields], ApiObject | None]] = {
    Kind.SERVICE: _service,
    Kind.ENDPOINT_SLICE: _endpoint_slice,
    Kind.NODE: _node,
    Kind.SERVICE_CIDR: _service_cidr,
    Kind.POD: _pod_of_node,
    Kind.NAMESPACE: _namespace,
}

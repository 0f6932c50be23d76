# SPDX-License-Identifier: Apache-2.0
"""API objects (from JSON or YAML) -> the model, with the API server's defaults."""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from sys import intern

from ebpflb.errors import SourceError
from ebpflb.from_json import JsonError
from ebpflb.model.address import (
    WILDCARD,
    Address,
    Family,
    Protocol,
    family_of,
    parse_address,
    parse_range,
)
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.model.extensions.annotated import Annotated
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, Kind
from ebpflb.model.pod import Pod, PodNamespace
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
from ebpflb.source.api_objects import Known, item_of, known_of, object_of
from ebpflb.source.api_types import (
    API_TYPES,
    API_VERSIONS,
    AnyKind,
    ApiType,
    Conditions,
    EndpointEntry,
    EndpointHint,
    EndpointHints,
    Fields,
    Json,
    Metadata,
    NamespaceObject,
    NodeObject,
    NodeObjectSpec,
    NodeObjectStatus,
    ObjectMetadata,
    PodLabelsObject,
    PodMetadata,
    PodObject,
    PodObjectStatus,
    PortEntry,
    ServiceCidrObject,
    ServiceObject,
    ServiceObjectSpec,
    ServiceObjectStatus,
    SliceObject,
    TargetReference,
    is_name,
)
from ebpflb.source.typed import FieldError, checked, excerpt, quickly
from ebpflb.source.what_counts import (
    FINISHED,
    HEADLESS_LABEL,
    NO_CLUSTER_IP,
    SERVICE_LABEL,
    is_for_another_proxy,
    what_counts,
)

ZONE_LABEL = "topology.kubernetes.io/zone"
# The cluster autoscaler is about to remove the node; as in kube-proxy's NodeEligible.
LEAVING_TAINT = "ToBeDeletedByClusterAutoscaler"
_AFFINITY_DEFAULT = 10800
# The suffix of a CronJob's Jobs, minutes since 1970: getJobName in
# pkg/controller/cronjob/utils.go of Kubernetes.
_OF_CRON_JOB = re.compile(r"-\d{8,}$")
_HASH_LABEL = "pod-template-hash"
# The controller of a static pod.
_NODE = "Node"

_WILDCARDS = frozenset(WILDCARD.values())
_NO_CONDITIONS, _NO_HINTS = Conditions(), EndpointHints()
_FAMILIES = {family.text: family for family in Family}


def kind_of(document: Fields | Json) -> Kind | None:
    """The kind of an object, None for a kind that is not read here.

    Raises SourceError if it has no kind. Without an apiVersion, the kind alone decides.
    """
    found = quickly(document, AnyKind) if isinstance(document, Json) else None
    if found is None:
        fields = object_of(document) if isinstance(document, Json) else document
        found = AnyKind(fields.get("kind"), fields.get("apiVersion"))
    kind, version = found.kind, found.api_version
    if not isinstance(kind, str) or not kind:
        raise SourceError("kind: is missing, so this is not a Kubernetes object")
    if version is not None and version != API_VERSIONS.get(kind):
        return None
    return Kind(kind) if kind in API_VERSIONS else None


def identity(kind: Kind, known: Known) -> str:
    """Kind, namespace and name of an object, as far as they can be read."""
    if not is_name(known.name):
        return kind.noun
    namespace = known.namespace or "default" if kind.is_namespaced else ""
    return f"{kind.noun} {'/'.join(filter(is_name, (namespace, known.name)))}"


def decode(
    document: Fields | Json, label_keys: Collection[str] = (), kind: Kind | None = None
) -> ApiObject | None:
    """The object that a document describes; None if it does not matter to a service proxy.

    That is an object of another kind, or a slice that is headless, has no Service or has host
    names. A Service that is for another proxy or has no ClusterIP has no ports here. IP addresses
    and CIDRs that cannot be parsed are skipped; so are 0.0.0.0 and ::, except where the model
    refuses them. label_keys: the labels of Services and Namespaces to keep; with PROXY_LABEL, the
    selection decides which Services are for another proxy. kind: of an object that does not say
    so, as in a list, or POD_LABELS for those of a Pod. Raises SourceError, which names the object
    and the field, and JsonError if the kind cannot be read.
    """
    kind = kind or kind_of(document)
    if kind is None:
        return None
    try:
        return _model(_typed(kind, document, label_keys), label_keys)
    except (FieldError, JsonError) as error:
        known = item_of(document).known if isinstance(document, Json) else known_of(document)
        raise SourceError(f"{identity(kind, known)}: {error}") from error


def _typed(kind: Kind, document: Fields | Json, label_keys: Collection[str]) -> ApiType:
    wanted = API_TYPES[kind]
    if isinstance(document, Json):
        if (found := quickly(document, wanted)) is not None:
            return found
        document = object_of(document)
    return checked(what_counts(kind, document, label_keys), wanted)


def _model(item: ApiType, label_keys: Collection[str]) -> ApiObject | None:
    found: ApiObject | None
    match item:
        case ServiceObject():
            found = _service(item, label_keys)
        case SliceObject():
            found = _endpoint_slice(item)
        case NodeObject():
            found = _node(item)
        case ServiceCidrObject():
            # Whatever its conditions are, as in kube-proxy.
            cidrs = item.spec.cidrs if item.spec else None
            found = ServiceCidr(item.metadata.name, _cidrs(cidrs))
        case PodObject():
            found = _pod(item)
        case NamespaceObject():
            has_socket_lb = annotations.socket_lb(item.metadata.annotations)
            labels = _kept_labels(item.metadata, label_keys)
            found = PodNamespace(intern(item.metadata.name), has_socket_lb, labels)
        case PodLabelsObject():
            found = _pod_labels(item.metadata)
    return found


def _kept_labels(metadata: Metadata, keys: Collection[str]) -> Labels:
    labels = metadata.labels or {}
    return tuple((key, _label(metadata, key)) for key in sorted(keys) if key in labels)


def _label(metadata: Metadata, key: str) -> str:
    """Empty without the label."""
    value = (metadata.labels or {}).get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FieldError(f"metadata.labels.{key}", f"must be text, not {excerpt(value)}")
    return intern(value)


def _time(key: str, value: object) -> str:
    """A time in the metadata as text, empty if missing. Unquoted in YAML it is a datetime."""
    if value is None:
        return ""
    if isinstance(value, str):
        return intern(value)
    if not isinstance(value, datetime):
        raise FieldError(f"metadata.{key}", f"must be text, not {excerpt(value)}")
    try:
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError) as error:
        problem = "must be a time from year 1 to 9999 in UTC"
        raise FieldError(f"metadata.{key}", problem) from error


def _node(item: NodeObject) -> Node:
    spec, status = item.spec or NodeObjectSpec(), item.status or NodeObjectStatus()
    is_leaving = any(each.key == LEAVING_TAINT for each in spec.taints or ())
    is_deleted = bool(_time("deletionTimestamp", item.metadata.deletion_timestamp))
    internal, external = (
        _addresses(each.address or "" for each in status.addresses or () if each.type == kind)
        for kind in ("InternalIP", "ExternalIP")
    )
    external = [address for address in external if address not in internal]
    return Node(
        intern(item.metadata.name),
        _label(item.metadata, ZONE_LABEL),
        (*internal, *external),
        eligible=not (is_leaving or is_deleted),
        external=tuple(external),
        pod_ranges=_cidrs(spec.pod_cidrs),
    )


def _cidrs(texts: list[str] | None) -> tuple[str, ...]:
    found = []
    for text in texts or ():
        with suppress(ValueError):
            found.append(parse_range(text)[1])
    return tuple(found)


def _pod(item: PodObject) -> Pod:
    metadata, status = item.metadata, item.status or PodObjectStatus()
    has_addresses = not (item.spec and item.spec.host_network) and status.phase not in FINISHED
    return Pod(
        intern(metadata.namespace or "default"),
        intern(metadata.name),
        tuple(_addresses(each.ip or "" for each in status.pod_ips or () if has_addresses)),
        annotations.socket_lb(metadata.annotations),
        workload_of(metadata),
        metadata.uid or "",
    )


def _pod_labels(metadata: ObjectMetadata) -> PodLabels:
    keys = metadata.labels or {}
    if not all(isinstance(each, str) for each in keys):
        raise FieldError("metadata.labels", "must have texts as names")
    labels = tuple((intern(key), value) for key, value in _kept_labels(metadata, keys))
    namespace = intern(metadata.namespace or "default")
    return PodLabels(namespace, metadata.name, labels, *annotations.weight(metadata.annotations))


def workload_of(pod: PodMetadata) -> str:
    """What users know as its owner: Deployment/web, not ReplicaSet/web-5d8f6c; or "".

    A Job named like one of a CronJob counts as one.
    """
    kind, name = _controller(pod.owner_references)
    if kind == "ReplicaSet" and (hash_ := (pod.labels or {}).get(_HASH_LABEL)):
        return f"Deployment/{name.removesuffix(f'-{hash_}')}"
    if kind == "Job" and _OF_CRON_JOB.search(name):
        return f"CronJob/{_OF_CRON_JOB.sub('', name)}"
    return f"{kind}/{name}" if name and kind != _NODE else ""


def _controller(owners: object) -> tuple[str, str]:
    """The controller's kind and name. The API server has validated the fields read here."""
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return str(owner.get("kind", "")), str(owner.get("name", ""))
    return "", ""


def _service(item: ServiceObject, label_keys: Collection[str]) -> Service:
    metadata = item.metadata
    name = ServiceName(intern(metadata.namespace or "default"), intern(metadata.name))
    created = _time("creationTimestamp", metadata.creation_timestamp)
    labels = _kept_labels(metadata, label_keys)
    if is_for_another_proxy(metadata.labels, label_keys):
        return Service(name, (), created, labels)
    annotated, problems = annotations.of_service(metadata.annotations)
    spec = item.spec or ServiceObjectSpec()
    ports = _service_ports(name, spec, _ingress_ips(item.status), annotated)
    return Service(name, ports, created, labels, problems)


def _ingress_ips(status: ServiceObjectStatus | None) -> Collection[Address]:
    balancer = status.load_balancer if status else None
    entries = (balancer.ingress if balancer else None) or ()
    return _asked_for(each.ip or "" for each in entries if each.ip_mode != "Proxy")


def _service_ports(
    name: ServiceName,
    spec: ServiceObjectSpec,
    ingress_ips: Collection[Address],
    annotated: Annotated,
) -> tuple[ServicePort, ...]:
    cluster_ips = _cluster_ips(spec)
    if not cluster_ips:
        return ()
    external_ips = _asked_for(spec.external_ips or ())
    ranges = _source_ranges(spec)
    external_policy = _external_policy(spec)
    make = partial(
        ServicePort,
        internal_policy=TrafficPolicy(spec.internal_traffic_policy or "Cluster"),
        external_policy=external_policy,
        affinity_timeout=_affinity_timeout(spec),
        health_check_node_port=_health_check_node_port(spec, external_policy),
        annotated=annotated,
    )
    return tuple(
        make(
            name=port_name,
            family=family,
            cluster_ip=cluster_ip,
            port=port.port,
            node_port=port.node_port or 0,
            external_ips=_of_family(family, external_ips),
            load_balancer_ips=_of_family(family, ingress_ips),
            source_ranges=ranges.get(family, ()),
        )
        for port_name, port in _named_ports(name, spec).items()
        for family, cluster_ip in cluster_ips.items()
    )


def _cluster_ips(spec: ServiceObjectSpec) -> dict[Family, Address]:
    first = spec.cluster_ip or ""
    if first in NO_CLUSTER_IP or spec.type == "ExternalName":
        return {}
    if not spec.ip_families:
        return {family_of(address): address for address in _addresses([first])}
    found: dict[Family, Address] = {}
    for name, text in zip(spec.ip_families, spec.cluster_ips or [first], strict=False):
        family = _FAMILIES[name]
        for address in _of_family(family, _addresses([text])):
            found.setdefault(family, address)
    return found


def _external_policy(spec: ServiceObjectSpec) -> TrafficPolicy:
    counts = spec.type in ("LoadBalancer", "NodePort") or spec.external_ips
    return TrafficPolicy((counts and spec.external_traffic_policy) or "Cluster")


def _health_check_node_port(spec: ServiceObjectSpec, external_policy: TrafficPolicy) -> int:
    counts = spec.type == "LoadBalancer" and external_policy is TrafficPolicy.LOCAL
    return (counts and spec.health_check_node_port) or 0


def _affinity_timeout(spec: ServiceObjectSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    client_ip = spec.session_affinity_config and spec.session_affinity_config.client_ip
    return (client_ip and client_ip.timeout_seconds) or _AFFINITY_DEFAULT


def _source_ranges(spec: ServiceObjectSpec) -> dict[Family, tuple[str, ...]]:
    found: dict[Family, tuple[str, ...]] = {}
    unrestricted = set()
    for text in spec.load_balancer_source_ranges or ():
        try:
            family, canonical = parse_range(text)
        except ValueError:
            continue
        if canonical.endswith("/0"):
            unrestricted.add(family)
        found[family] = (*found.get(family, ()), canonical)
    return {family: ranges for family, ranges in found.items() if family not in unrestricted}


def _named_ports(service: ServiceName, spec: ServiceObjectSpec) -> dict[ServicePortName, PortEntry]:
    found: dict[ServicePortName, PortEntry] = {}
    for index, port in enumerate(spec.ports or ()):
        name = ServicePortName(*service, intern(port.name or ""), _protocol(port.protocol))
        if name in found:
            raise FieldError(f"spec.ports[{index}].name", "is used twice with this protocol")
        found[name] = port
    return found


def _protocol(name: str | None) -> Protocol:
    return Protocol[name or "TCP"]


def _endpoint_slice(item: SliceObject) -> EndpointSlice | None:
    service = _label(item.metadata, SERVICE_LABEL)
    family = _FAMILIES.get(item.address_type)
    if not service or HEADLESS_LABEL in (item.metadata.labels or {}) or family is None:
        return None
    ports = tuple(
        SlicePort(intern(each.name), _protocol(each.protocol), each.port)
        for each in item.ports or ()
        if each.port and each.name is not None
    )
    return EndpointSlice(
        namespace=intern(item.metadata.namespace or "default"),
        name=intern(item.metadata.name),
        service=service,
        family=family,
        ports=_shared(ports),
        endpoints=PackedEndpoints(
            filter(None, map(partial(_endpoint, family), item.endpoints or ()))
        ),
        weight=annotations.slice_weight(item.metadata.annotations),
    )


@lru_cache(maxsize=8192)
def _shared(ports: tuple[SlicePort, ...]) -> tuple[SlicePort, ...]:
    """Share one copy between all slices with the same ports."""
    return ports


def _endpoint(family: Family, entry: EndpointEntry) -> Endpoint | None:
    """None unless its first address is of that family."""
    addresses = _of_family(family, _addresses(entry.addresses[:1])) if entry.addresses else ()
    if not addresses:
        return None
    conditions, hints = entry.conditions or _NO_CONDITIONS, entry.hints or _NO_HINTS
    return Endpoint(
        addresses[0],
        conditions.ready is not False,
        conditions.serving is not False,
        conditions.terminating is True,
        intern(entry.node_name) if entry.node_name else None,
        _hinted(hints.for_zones) if hints.for_zones else (),
        _hinted(hints.for_nodes) if hints.for_nodes else (),
        intern(entry.zone or ""),
        _pod_of(entry.target_ref) if entry.target_ref else "",
    )


def _pod_of(reference: TargetReference) -> str:
    names = reference.namespace or "", reference.name or ""
    return "/".join(names) if reference.kind == "Pod" and all(map(is_name, names)) else ""


def _hinted(hints: list[EndpointHint]) -> tuple[str, ...]:
    return tuple(intern(each.name) for each in hints)


def _addresses(texts: Iterable[str]) -> list[Address]:
    """The valid addresses, each once, without the wildcards, which stand for NodePorts."""
    return [address for address in _asked_for(texts) if address not in _WILDCARDS]


def _asked_for(texts: Iterable[str]) -> dict[Address, None]:
    """With the wildcards, which the model refuses."""
    found: dict[Address, None] = {}
    for text in texts:
        with suppress(ValueError):
            found[parse_address(text)] = None
    return found


def _of_family(family: Family, addresses: Iterable[Address]) -> tuple[Address, ...]:
    return tuple([address for address in addresses if family_of(address) is family])

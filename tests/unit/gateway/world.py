# SPDX-License-Identifier: Apache-2.0
"""Objects of a small cluster, as its API server has them, and what is planned for them."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec import convert

from ebpflb.gateway.policy.found import FoundObjects
from ebpflb.gateway.policy.objects import (
    Gateway,
    GatewayClass,
    GatewayRoute,
    GivenNode,
    GivenService,
    GivenSlice,
    LabelledNamespace,
    ReferenceGrant,
    ServiceImport,
)
from ebpflb.gateway.policy.plan import Plan, plan
from ebpflb.words.gateway import CONTROLLER, GROUP, IMPORT_LABEL

Object = dict[str, Any]

NOW = "2026-01-01T00:00:00Z"
RANGES = ("203.0.113.0/24", "2001:db8::/64")

TYPES: dict[str, Any] = {
    "GatewayClass": GatewayClass,
    "Gateway": Gateway,
    "TCPRoute": GatewayRoute,
    "UDPRoute": GatewayRoute,
    "ReferenceGrant": ReferenceGrant,
    "Namespace": LabelledNamespace,
    "Service": GivenService,
    "EndpointSlice": GivenSlice,
    "Node": GivenNode,
    "ServiceImport": ServiceImport,
}


def item(kind: str, name: str, namespace: str = "shop", **fields: Any) -> Object:
    """metadata: more of its fields."""
    more = fields.pop("metadata", {})
    uid = f"{kind}-{namespace}-{name}".lower()
    head = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "generation": 1,
        "resourceVersion": "1",
    }
    return {"kind": kind, "metadata": {**head, **more}, **fields}


def gateway_class(name: str = "ebpflb", controller: str = CONTROLLER, **spec: Any) -> Object:
    return item("GatewayClass", name, "", spec={"controllerName": controller, **spec})


def listener(port: int = 80, protocol: str = "TCP", **fields: Any) -> Object:
    return {"name": f"{protocol.lower()}{port}", "port": port, "protocol": protocol, **fields}


def gateway(
    *listeners: Object, name: str = "gw", namespace: str = "shop", created: int = 1, **spec: Any
) -> Object:
    return item(
        "Gateway",
        name,
        namespace,
        metadata={"creationTimestamp": f"2025-01-01T00:00:{created:02}Z"},
        spec={
            "gatewayClassName": "ebpflb",
            "listeners": list(listeners) or [listener()],
            **spec,
        },
    )


def addresses(*texts: str) -> list[Object]:
    return [{"value": each} for each in texts]


def route(
    *backends: Object,
    name: str = "route",
    protocol: str = "TCP",
    namespace: str = "shop",
    created: int = 1,
    **parent: Any,
) -> Object:
    """parent: fields of its reference to the Gateway gw."""
    return item(
        f"{protocol}Route",
        name,
        namespace,
        metadata={"creationTimestamp": f"2025-01-01T00:00:{created:02}Z"},
        spec={"parentRefs": [{"name": "gw", **parent}], "rules": [{"backendRefs": list(backends)}]},
    )


def backend(name: str = "web", port: int = 8080, **fields: Any) -> Object:
    return {"name": name, "port": port, **fields}


def service(
    name: str = "web", protocol: str = "TCP", port: int = 8080, namespace: str = "shop", **spec: Any
) -> Object:
    ports = [{"name": "main", "protocol": protocol, "port": port}]
    return item("Service", name, namespace, spec={"type": "ClusterIP", "ports": ports, **spec})


def endpoint_slice(
    *addresses: str,
    service: str = "web",
    protocol: str = "TCP",
    namespace: str = "shop",
    ready: bool = True,
    **fields: Any,
) -> Object:
    family = "IPv6" if any(":" in each for each in addresses) else "IPv4"
    return {
        **item("EndpointSlice", f"{service}-{family.lower()}", namespace),
        "service": service,
        "addressType": family,
        "ports": [{"name": "main", "protocol": protocol, "port": 9000}],
        "endpoints": [
            {"addresses": [each], "conditions": {"ready": ready}, "nodeName": "node1"}
            for each in addresses
        ],
        **fields,
    }


def service_import(name: str = "db", namespace: str = "shop", **spec: Any) -> Object:
    ports = [{"name": "main", "protocol": "TCP", "port": 5432}]
    return item(
        "ServiceImport", name, namespace, spec={"type": "ClusterSetIP", "ports": ports, **spec}
    )


def imported_slice(
    *addresses: str,
    cluster: str = "west",
    name: str = "db",
    namespace: str = "shop",
    **fields: Any,
) -> Object:
    """Of a ServiceImport, from a cluster, all endpoints in its only zone."""
    labels = {IMPORT_LABEL: name, "multicluster.kubernetes.io/source-cluster": cluster}
    family = "IPv6" if any(":" in each for each in addresses) else "IPv4"
    return {
        **item(
            *("EndpointSlice", f"{name}-{cluster}-{family.lower()}", namespace),
            metadata={"labels": labels},
        ),
        "addressType": family,
        "ports": [{"name": "main", "protocol": "TCP", "port": 9000}],
        "endpoints": [
            {"addresses": [each], "conditions": {"ready": True}, "nodeName": "n1", "zone": cluster}
            for each in addresses
        ],
        **fields,
    }


def grant(kind: str, source: str, namespace: str, name: str | None = None) -> Object:
    spec = {
        "from": [{"group": GROUP, "kind": kind, "namespace": source}],
        "to": [{"group": "", "kind": "Service", **({"name": name} if name else {})}],
    }
    return item("ReferenceGrant", "grant", namespace, spec=spec)


def found(*objects: Object, refusals: Mapping[tuple[str, str], str] | None = None) -> FoundObjects:
    """With the class, unless there is another one."""
    by_kind: defaultdict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
    slices: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    imported: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for each in (gateway_class(), *objects):
        made = convert(each, TYPES[each["kind"]])
        if each["kind"] == "EndpointSlice" and "service" not in each:
            imported[made.metadata.namespace, made.metadata.labels[IMPORT_LABEL]].append(made)
        elif each["kind"] == "EndpointSlice":
            slices[made.metadata.namespace, each["service"]].append(made)
        else:
            by_kind[each["kind"]][made.key] = made
    return FoundObjects(
        classes=by_kind["GatewayClass"],
        gateways=by_kind["Gateway"],
        routes={kind: by_kind[kind] for kind in ("TCPRoute", "UDPRoute")},
        grants=by_kind["ReferenceGrant"],
        namespaces=by_kind["Namespace"],
        services=by_kind["Service"],
        slices=slices,
        nodes=by_kind["Node"],
        imports=by_kind["ServiceImport"],
        imported=imported,
        refusals=refusals or {},
    )


def planned(*objects: Object, ranges: tuple[str, ...] = RANGES) -> Plan:
    return plan(found(*objects), ranges, NOW)


def conditions(entry: Any) -> dict[str, tuple[str, str]]:
    """Type -> status and reason."""
    return {each["type"]: (each["status"], each["reason"]) for each in entry["conditions"]}


def status(made: Plan, kind: str = "Gateway", name: str = "gw") -> Any:
    """The status that an object is to get."""
    (one,) = [
        each for each in made.statuses if (each.kind, each.item.metadata.name) == (kind, name)
    ]
    return one.after


def parent(made: Plan, kind: str = "TCPRoute", name: str = "route") -> dict[str, tuple[str, str]]:
    """The conditions of a route at its only parent."""
    (one,) = status(made, kind, name)["parents"]
    return conditions(one)


def of_listener(made: Plan, number: int = 0, name: str = "gw") -> Any:
    return status(made, name=name)["listeners"][number]


def own(made: Plan, *ips: str, name: str = "gw", **head: Any) -> Object:
    """The Service that is planned for a Gateway, as the API server has it once it is written.

    ips: from a load balancer.
    """
    wanted = made.wanted.services["shop", f"{name}-ebpflb"]
    metadata = {**wanted["metadata"], "uid": "own", "resourceVersion": "1", **head}
    balancer = {"ingress": [{"ip": each} for each in ips]}
    return {**wanted, "metadata": metadata, "status": {"loadBalancer": balancer}}


def copies(made: Plan) -> Mapping[str, Any]:
    """The planned EndpointSlices, by the addresses in them."""
    return {
        ",".join(each["addresses"][0] for each in piece["endpoints"]): piece
        for piece in made.wanted.slices.values()
    }


def weights(made: Plan) -> dict[str, str | None]:
    """By the addresses in the slice."""
    return {
        name: piece["metadata"]["annotations"].get("service.cilium.io/weight")
        for name, piece in copies(made).items()
    }

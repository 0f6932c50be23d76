# SPDX-License-Identifier: Apache-2.0
"""An agent that reads some Services and one odd object, from bytes to maps in memory."""

import json
from copy import deepcopy

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.explain import encode_frontend
from ebpflb.model.objects.kinds import Kind
from ebpflb.model.service import ServiceName
from ebpflb.source.api_objects import Item, event_of, items_of
from ebpflb.source.interface import SourceEvent
from ebpflb.source.kubernetes import KubernetesSource
from tests.builders import (
    NODE,
    Manifest,
    endpoint_manifest,
    node_manifest,
    service_manifest,
    slice_manifest,
)
from tests.unit.agent.conftest import Bench
from tests.unit.source.scripted import Script

NAMES = [ServiceName("prod", "web"), ServiceName("prod", "db")]
SLICES = [
    slice_manifest(f"{name}-1", service=name, namespace="prod", endpoints=[endpoint_manifest(pod)])
    for name, pod in (("web", "10.1.0.1"), ("db", "10.1.0.2"))
]
OTHERS: dict[Kind, list[Manifest]] = {
    Kind.SERVICE: [
        service_manifest("web", namespace="prod", cluster_ip="10.96.0.99"),
        service_manifest("db", namespace="prod", cluster_ip="10.96.0.98"),
    ],
    Kind.ENDPOINT_SLICE: SLICES,
    Kind.NODE: [node_manifest(addresses=("192.0.2.1",))],
}
# The change to the Service web while the odd object exists.
MOVED = slice_manifest(
    "web-1", service="web", namespace="prod", endpoints=[endpoint_manifest("10.1.0.3")]
)

METADATA = {
    "name": "odd",
    "namespace": "odd",
    "uid": "0b0d1f5e-0000-0000-0000-000000000001",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-02T00:00:00Z",
    "generateName": "odd-",
    "finalizers": ["example.com/a"],
    "labels": {"app": "odd", "pod-template-hash": "5d8f6c", "topology.kubernetes.io/zone": "a"},
    "annotations": {
        "ebpflb.io/socket-lb": "false",
        "ebpflb.io/scheduler": "maglev",
        "ebpflb.io/ejection": "3",
        "ebpflb.io/dsr": "true",
        "ebpflb.io/backup": "prod/web",
        "ebpflb.io/backup-for": "*",
        "ebpflb.io/spill-at": "3",
        "ebpflb.io/weights": "pods",
        "ebpflb.io/weight": "3",
        "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z",
    },
    "ownerReferences": [{"kind": "ReplicaSet", "name": "odd-5d8f6c", "controller": True}],
    "managedFields": [{"manager": "a", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}],
}
CONDITIONS = [{"type": "Ready", "status": "True", "message": "good"}]
ODD: dict[Kind, Manifest] = {
    Kind.SERVICE: {
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "a", "port": 80, "protocol": "TCP", "nodePort": 30080}],
            "externalIPs": ["203.0.113.1"],
            "loadBalancerSourceRanges": ["198.51.100.0/24"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30081,
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "203.0.113.2", "ipMode": "VIP"}]},
            "conditions": CONDITIONS,
        },
    },
    Kind.ENDPOINT_SLICE: {
        "addressType": "IPv4",
        "ports": [{"name": "a", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": ["10.1.0.9"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": NODE}]},
                "nodeName": NODE,
                "zone": "a",
                "targetRef": {"kind": "Pod", "namespace": "odd", "name": "odd"},
            }
        ],
    },
    Kind.NODE: {
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "podCIDRs": ["10.1.9.0/24"]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.9"},
                {"type": "ExternalIP", "address": "203.0.113.9"},
            ],
            "conditions": CONDITIONS,
        },
    },
    Kind.SERVICE_CIDR: {
        "spec": {"cidrs": ["10.97.0.0/16", "fd00:97::/112"]},
        "status": {"conditions": CONDITIONS},
    },
    Kind.POD: {
        "spec": {"hostNetwork": False, "nodeName": NODE, "containers": [{"env": []}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.9"}], "conditions": CONDITIONS},
    },
    Kind.NAMESPACE: {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}},
    Kind.POD_LABELS: {},
}
LABELS = {"kubernetes.io/service-name": "odd"}


def odd(kind: Kind) -> Manifest:
    """With every field that the agent reads."""
    metadata = deepcopy(METADATA)
    if kind is Kind.ENDPOINT_SLICE:
        metadata["labels"] = LABELS
    return {"metadata": metadata, **deepcopy(ODD[kind]), "unknown": 1}


class World:
    """The agent."""

    def __init__(self, kind: Kind = Kind.SERVICE, raw: bytes = b"") -> None:
        """`raw`: an odd object of that kind, listed before the others; empty for none."""
        self._bench = Bench()
        self._events: list[SourceEvent] = []
        self._source = KubernetesSource(Script(), NODE, self._events.append, with_pods=False)
        for each in Kind:
            items = [json.dumps(other).encode() for other in OTHERS.get(each, ())]
            if raw and kind is each:
                items.insert(0, raw)
            self._source.replace(each, items_of(b'{"items":[' + b",".join(items) + b"]}"))
        self.turn()

    def send(self, kind: Kind, verb: str, raw: bytes) -> None:
        """An event about an object."""
        event = event_of(b'{"type":"%s","object":%s}' % (verb.encode(), raw))
        self.take(kind, event.item, deleted=event.kind == "DELETED")

    def take(self, kind: Kind, item: Item, *, deleted: bool) -> None:
        """The same, after decoding."""
        self._source.change(kind, item, deleted=deleted)

    def move(self) -> None:
        """Change the endpoints of one of the others."""
        self.send(Kind.ENDPOINT_SLICE, "MODIFIED", json.dumps(MOVED).encode())

    def turn(self, seconds: float = 0.0) -> None:
        """Let the agent act."""
        for event in self._events:
            self._bench.agent.tell(event)
        del self._events[:]
        self._bench.turn(seconds)

    def others(self) -> object:
        """Everything known of the others."""
        changes = self._bench.agent._changes
        frontends = [
            encode_frontend(each.frontend)
            for each in read_frontends(self._bench.node.maps)
            if ServiceName(*each.frontend.service[:2]) in NAMES
        ]
        planned = [(changes.served(name), changes.plan(name)) for name in NAMES]
        return frontends, planned, [changes.health_check(name) for name in NAMES]

    def counted(self) -> object:
        """The agent's own counters."""
        report = self._bench.report()
        samples = self._bench.samples()
        said = {each: report[each] for each in ("services", "frontends", "refused", "conflicts")}
        return said, report["in_sync"], report["source_errors"], samples["ebpflb_services"]

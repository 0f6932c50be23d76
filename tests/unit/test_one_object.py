# SPDX-License-Identifier: Apache-2.0
"""Whatever one object holds, from the bytes of the API server to the maps: all other Services are
served, changed, explained and counted as without it.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.changes import Kind
from ebpflb.model.explain import describe, encode_frontend
from ebpflb.model.service import ServiceName
from ebpflb.source.api_objects import event_of, items_of
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
# What the change to the Service web is, while the odd object is there.
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
}
LABELS = {"kubernetes.io/service-name": "odd"}

# In place of a field's value. All but the last few can be in managedFields of a real object.
DEEP = b'{"f:a":' * 9990 + b"{}" + b"}" * 9990
HOSTILE = [
    *(DEEP, b"[" * 9990 + b"]" * 9990, b'{"f:\xff\xfe":{}}', b'"\xff\xfe"', b'"\\ud800"'),
    *(b"9" * 5000, b"-1", b"1e999", b"65536", b"18446744073709551616", b"0.5", b"80"),
    *(b"null", b"true", b"{}", b"[]", b"[null]", b"[{}]", b"[[]]", b'{"":{}}', b'""'),
    *(b'"' + b"x" * 262_144 + b'"', b'"\\u0000\\n\\u001b[2J"', b'"\xf0\x9f\x98\x80"', b'"::"'),
    *(b'"0.0.0.0"', b'"127.0.0.1"', b'"::ffff:10.0.0.1"', b'"0.0.0.0/0"', b'"::/0"', b'"9999"'),
    *(b"NaN", b"", b'"\\q"', b'"\x01"', b"[1 2]"),
]


class Change(NamedTuple):
    """The value at a path of an object of that kind becomes these bytes."""

    kind: Kind
    path: tuple[str | int, ...]
    value: bytes

    def made(self) -> bytes:
        """The object."""
        document = odd(self.kind)
        inside: Any = document
        for step in self.path[:-1]:
            inside = inside[step]
        inside[self.path[-1]] = "@@"
        return json.dumps(document).encode().replace(b'"@@"', self.value)


def odd(kind: Kind) -> Manifest:
    metadata = deepcopy(METADATA)
    if kind is Kind.ENDPOINT_SLICE:
        metadata["labels"] = LABELS
    return {"metadata": metadata, **deepcopy(ODD[kind]), "unknown": 1}


def paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Of all fields within."""
    entries: Any = ()
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in entries:
        yield (step,)
        yield from ((step, *rest) for rest in paths(inner))


def as_string(raw: bytes) -> bytes:
    return b'"%s"' % raw.translate(None, b'"\\')


PATHS = [(kind, path) for kind in Kind for path in paths(odd(kind))]
CHANGES = st.builds(
    lambda place, value: Change(*place, value),
    st.sampled_from(PATHS),
    st.sampled_from(HOSTILE) | st.binary(max_size=8).map(as_string),
)


class World:
    """An agent and what it is told, as bytes; beside OTHERS there may be one odd object."""

    def __init__(self, change: Change | None, *, listed: bool) -> None:
        self._bench = Bench()
        self._change = change
        self.events: list[SourceEvent] = []
        self._source = KubernetesSource(Script(), NODE, self.events.append)
        for kind in Kind:
            items = [json.dumps(each).encode() for each in OTHERS.get(kind, ())]
            if listed and change and change.kind is kind:
                items.insert(0, change.made())
            self._list(kind, items)
        if not listed:
            self.send("ADDED")
        self._turn()

    def _list(self, kind: Kind, items: list[bytes]) -> None:
        self._source.replace(kind, items_of(b'{"items":[' + b",".join(items) + b"]}"))

    def send(self, verb: str) -> None:
        """An event about the odd object."""
        if self._change:
            self._send(self._change.kind, verb, self._change.made())

    def _send(self, kind: Kind, verb: str, raw: bytes) -> None:
        event = event_of(b'{"type":"%s","object":%s}' % (verb.encode(), raw))
        self._source.change(kind, event.item, deleted=verb == "DELETED")

    def move(self) -> None:
        """The endpoints of one of the others change, right after the odd object did."""
        self.send("MODIFIED")
        self._send(Kind.ENDPOINT_SLICE, "MODIFIED", json.dumps(MOVED).encode())
        self._turn()

    def _turn(self) -> None:
        for event in self.events:
            self._bench.agent.tell(event)
        del self.events[:]
        self._bench.turn()

    def others(self) -> object:
        """All that is known of the others."""
        changes = self._bench.agent._changes
        frontends = [
            encode_frontend(each.frontend)
            for each in read_frontends(self._bench.node.maps)
            if ServiceName(*each.frontend.service[:2]) in NAMES
        ]
        health = [changes.health_check(name) for name in NAMES]
        return frontends, [describe(changes, name) for name in NAMES], health

    def counted(self) -> object:
        """What the agent says of itself."""
        report = self._bench.report()
        samples = self._bench.samples()
        said = {each: report[each] for each in ("services", "frontends", "refused", "conflicts")}
        return said, report["in_sync"], report["source_errors"], samples["ebpflb_services"]


class Seen(NamedTuple):
    """At three moments: all listed, a change of the others, and the odd object deleted."""

    first: object
    moved: object
    last: object
    counted: object


def seen(change: Change | None, *, listed: bool) -> Seen:
    world = World(change, listed=listed)
    first = world.others()
    world.move()
    moved = world.others()
    world.send("DELETED")
    world._turn()
    return Seen(first, moved, world.others(), world.counted())


@cache
def without() -> Seen:
    return seen(None, listed=True)


@settings(max_examples=200)
@given(CHANGES, st.booleans())
@example(Change(Kind.SERVICE, ("metadata", "managedFields"), DEEP), True)
@example(Change(Kind.POD, ("metadata", "managedFields"), b'{"f:\xff\xfe":{}}'), False)
@example(Change(Kind.NODE, ("status", "addresses"), b"9" * 5000), False)
def test_whatever_one_object_holds_all_others_are_served_as_without_it(
    change: Change, listed: bool
):
    assert seen(change, listed=listed) == without()

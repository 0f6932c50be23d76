# SPDX-License-Identifier: Apache-2.0
"""API objects with invalid values in each of their fields."""

import re
from collections.abc import Mapping
from datetime import timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.source.decode import decode
from tests.builders import NODE, Manifest

ONE_LINE = re.compile(
    r"(Service|EndpointSlice|Node|ServiceCIDR|Pod)( [-a-z0-9./]+)?: [a-zA-Z][^\s:]*: .+"
)
VERSIONS = {
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "Node": "v1",
    "ServiceCIDR": "networking.k8s.io/v1",
    "PartialObjectMetadata": "meta.k8s.io/v1",
}
ADDRESSES = ["10.96.0.1", "10.1.0.1", "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "::", "127.0.0.1"]
CIDRS = ["10.0.0.0/8", "0.0.0.0/0", "::/0", "10.0.0.1/33", "fd00::/64"]
WORDS = ["web", "a", "", "TCP", "UDP", "IPv4", "IPv6", "Local", "Cluster", "ClientIP", "None"]
TYPES = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "VIP", "Proxy", "InternalIP"]
NAMES = [
    "name",
    "namespace",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "externalIPs",
    "ports",
    "port",
    "nodePort",
    "protocol",
    "type",
    "status",
    "loadBalancer",
    "ingress",
    "ip",
    "ipMode",
    "spec",
    "sessionAffinity",
    "sessionAffinityConfig",
    "clientIP",
    "timeoutSeconds",
    "loadBalancerSourceRanges",
    "healthCheckNodePort",
    "internalTrafficPolicy",
    "externalTrafficPolicy",
    "endpoints",
    "addresses",
    "address",
    "conditions",
    "ready",
    "serving",
    "terminating",
    "hints",
    "forZones",
    "forNodes",
    "nodeName",
    "taints",
    "key",
    "cidrs",
    "addressType",
    "kubernetes.io/service-name",
    "service.kubernetes.io/headless",
    "topology.kubernetes.io/zone",
    "service.kubernetes.io/service-proxy-name",
]
NUMBERS = st.sampled_from([0, 1, 80, 8080, 65535, 65536, -1, 2**63, 10**4000])
TIMES = st.datetimes(timezones=st.sampled_from([None, timezone(timedelta(hours=14))]))
TEXTS = st.sampled_from([*ADDRESSES, *CIDRS, *WORDS, *TYPES]) | st.text(max_size=4)
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | TIMES
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


def _lists(each: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Some entries of a list, or an invalid value in its place."""
    return st.lists(_object(each) | VALUES, max_size=3) | VALUES


def _object(fields: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict(fields))


PORTS = {"name": st.sampled_from(["", "a", "b"]), "port": st.just(80) | NUMBERS, "protocol": TEXTS}
SPECS = {
    "clusterIP": st.sampled_from(ADDRESSES),
    "clusterIPs": _lists({}) | st.just(ADDRESSES[:3]),
    "ipFamilies": st.sampled_from([["IPv4"], ["IPv6", "IPv4"], ["IPv4", "IPv4"], "IPv4"]),
    "ports": st.just([{"port": 80}]) | _lists({**PORTS, "nodePort": NUMBERS}),
    "externalIPs": st.just(ADDRESSES),
    "loadBalancerSourceRanges": st.just(CIDRS) | VALUES,
    "sessionAffinity": st.sampled_from(["ClientIP", "None"]),
    "sessionAffinityConfig": VALUES,
    "type": st.sampled_from(TYPES[:4]),
    "externalTrafficPolicy": st.sampled_from(["Local", "Cluster"]),
    "healthCheckNodePort": NUMBERS,
    "taints": _lists({"key": TEXTS}),
    "cidrs": st.just(CIDRS) | VALUES,
}
ENDPOINTS = {
    "addresses": st.just(ADDRESSES[1:2]) | VALUES,
    "conditions": VALUES,
    "hints": _object({"forZones": _lists({"name": TEXTS}), "forNodes": VALUES}),
    "nodeName": st.sampled_from([NODE, "x"]) | VALUES,
}
LABELS = _object({name: TEXTS for name in NAMES if "/" in name})
METADATA = {
    "name": st.sampled_from(["web", "a", NODE]) | TEXTS,
    "namespace": st.just("default"),
    "labels": st.just({"kubernetes.io/service-name": "web"}) | LABELS | VALUES,
    "creationTimestamp": TIMES | VALUES,
    "deletionTimestamp": TIMES | VALUES,
    "annotations": _object({"ebpflb.io/weight": TEXTS | st.sampled_from(["0", "9"])}) | VALUES,
}
OBJECTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(VERSIONS)),
        "metadata": _object(METADATA) | st.fixed_dictionaries({"name": st.just("web")}),
    },
    optional={
        "spec": _object(SPECS) | VALUES,
        "status": _object({"addresses": _lists({"type": TEXTS, "address": TEXTS})}) | VALUES,
        "addressType": st.sampled_from(["IPv4", "IPv6", "FQDN"]) | VALUES,
        "ports": _lists(PORTS),
        "endpoints": _lists(ENDPOINTS),
    },
)


def decoded(document: Manifest) -> ApiObject | None:
    """The object, None when it is refused in one line that names it."""
    message = ""
    found: ApiObject | None = None
    try:
        found = decode({"apiVersion": VERSIONS[document["kind"]], **document})
    except SourceError as error:
        message = str(error)
    assert not message or ONE_LINE.fullmatch(message), message
    return found

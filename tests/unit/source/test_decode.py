# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices, Nodes, and what all objects have in common."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.errors import SourceError
from ebpflb.model.address import Family, Protocol, format_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice, SlicePort
from ebpflb.model.node import Node
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.selection import PROXY_LABEL
from ebpflb.model.service import Service, ServiceCidr
from ebpflb.source.decode import decode
from tests.builders import (
    Manifest,
    address,
    endpoint,
    endpoint_manifest,
    endpoint_slice,
    node,
    node_manifest,
    port_manifest,
    service,
    service_cidr_manifest,
    service_manifest,
    slice_manifest,
)


def decoded(manifest: Manifest) -> EndpointSlice:
    found = decode(json.loads(json.dumps(manifest)))
    assert isinstance(found, EndpointSlice)
    return found


def endpoint_of(**fields: Any) -> Endpoint:
    (found,) = decoded(slice_manifest(endpoints=[endpoint_manifest(**fields)])).endpoints
    return found


def test_the_builders_describe_the_same_objects():
    assert decoded(slice_manifest()) == endpoint_slice("web-1", endpoint())
    assert decode(node_manifest()) == node()
    addresses = ("192.0.2.1", "fd02::1")
    manifest = node_manifest(zone="zone-1", addresses=addresses)
    assert decode(manifest) == node(zone="zone-1", addresses=addresses)


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        ({}, {}),
        ({"kubernetes.io/service-name": ""}, {}),
        ({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}, {}),
        ({"kubernetes.io/service-name": "web"}, {"addressType": "FQDN"}),
    ],
)
def test_slices_that_do_not_matter(labels: dict[str, str], fields: Manifest):
    manifest = slice_manifest(**fields)
    manifest["metadata"]["labels"] = labels
    assert decode(manifest) is None


def test_the_label_that_leaves_a_service_to_others_does_not_count_on_a_slice():
    manifest = slice_manifest()
    manifest["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other"
    assert decode(manifest) is not None


@pytest.mark.parametrize(
    ("text", "weight"),
    [("0", 0), ("65535", 65535), ("65536", None), ("-1", None), ("heavy", None), ("", None)],
)
def test_the_weight_of_a_slice_is_that_of_cilium_which_ignores_others(text, weight):
    manifest = slice_manifest()
    manifest["metadata"]["annotations"] = {"service.cilium.io/weight": text}
    assert decoded(manifest) == endpoint_slice("web-1", endpoint(), weight=weight)
    manifest["metadata"]["annotations"] = {"service.cilium.io/weight": [text]}
    assert decoded(manifest).weight is None


def test_a_slice_belongs_to_the_service_of_its_own_namespace():
    found = decoded(slice_manifest(service="shop", namespace="prod"))
    assert (found.namespace, found.service, found.name) == ("prod", "shop", "web-1")


@pytest.mark.parametrize("name", ["1web", "1-2", "12"])
def test_names_may_begin_with_a_digit(name: str):
    assert decode(service_manifest(name)) == service(name)
    assert decoded(slice_manifest(service=name)).service == name


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"name": "http", "port": 8080}, SlicePort("http", Protocol.TCP, 8080)),
        ({"name": "", "port": 8080, "protocol": "UDP"}, SlicePort("", Protocol.UDP, 8080)),
        ({"name": None, "port": 8080}, None),
        ({"port": 8080}, None),
        ({"name": "http", "port": None}, None),
        ({"name": "http", "port": 0}, None),
        ({"name": "http"}, None),
    ],
)
def test_ports_need_a_name_and_a_number(port: Manifest, expected: SlicePort | None):
    assert decoded(slice_manifest(ports=[port])).ports == ((expected,) if expected else ())


@pytest.mark.parametrize("members", ["ports", "endpoints"])
def test_a_slice_may_be_empty(members: str):
    found = decoded({**slice_manifest(), members: []})
    assert getattr(found, members) == ()
    assert decoded({**slice_manifest(), members: None}) == found


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, (True, True, False)),
        ({}, (True, True, False)),
        ({"ready": None, "serving": None, "terminating": None}, (True, True, False)),
        ({"ready": False, "serving": True, "terminating": True}, (False, True, True)),
        ({"ready": True, "serving": False}, (True, False, False)),
    ],
)
def test_conditions_have_defaults(conditions: Manifest | None, expected: tuple[bool, bool, bool]):
    found = endpoint_of(conditions=conditions)
    assert (found.ready, found.serving, found.terminating) == expected


def test_only_the_first_address_of_an_endpoint_counts():
    assert endpoint_of(addresses=["10.1.0.1", "10.1.0.2"]).address == address("10.1.0.1")


@pytest.mark.parametrize(
    "addresses", [[], None, ["bogus"], ["fd01::1"], ["bogus", "10.1.0.1"], [""]]
)
def test_endpoints_without_a_usable_address_are_skipped(addresses: list[str] | None):
    entries = [endpoint_manifest(addresses=addresses), endpoint_manifest("10.1.0.2")]
    assert decoded(slice_manifest(endpoints=entries)).endpoints == (endpoint("10.1.0.2"),)


def test_addresses_are_of_the_type_of_the_slice():
    entries = [endpoint_manifest("10.1.0.1"), endpoint_manifest("FD01::0001")]
    found = decoded(slice_manifest(addressType="IPv6", endpoints=entries))
    assert found.family is Family.IPV6
    assert [format_address(each.address) for each in found.endpoints] == ["fd01::1"]


def test_an_endpoint_may_be_on_no_node():
    assert endpoint_of(nodeName=None).node_name is None
    assert endpoint_of(nodeName="").node_name is None


def test_hints_are_read():
    hints = {"forZones": [{"name": "zone-1"}, {"name": "zone-2"}], "forNodes": [{"name": "node-a"}]}
    found = endpoint_of(hints=hints)
    assert found.zone_hints == ("zone-1", "zone-2")
    assert found.node_hints == ("node-a",)
    assert endpoint_of(hints=None) == endpoint()


def test_texts_and_hints_that_repeat_are_kept_once():
    hints = {"forZones": [{"name": "zone-1"}]}
    entries = [endpoint_manifest(f"10.1.0.{n}", "node-" + "x" * 9, hints=hints) for n in (1, 2)]
    first, second = decoded(slice_manifest(endpoints=entries)).endpoints
    assert first.node_name is second.node_name
    assert first.zone_hints is second.zone_hints


def test_node_addresses_are_the_internal_ones_first():
    manifest = node_manifest()
    manifest["status"]["addresses"] = [
        {"type": "ExternalIP", "address": "203.0.113.1"},
        {"type": "Hostname", "address": "192.0.2.9"},
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "bogus"},
        {"type": "ExternalIP", "address": "192.0.2.1"},
        {"address": "192.0.2.8"},
    ]
    found = decode(manifest)
    assert isinstance(found, Node)
    assert [format_address(each) for each in found.addresses] == ["192.0.2.1", "203.0.113.1"]
    assert [format_address(each) for each in found.external] == ["203.0.113.1"]


def test_the_pod_cidrs_of_a_node_are_read():
    cidrs = ["10.244.7.9/24", "bogus", "fd00:10:244::/64"]
    found = decode({**node_manifest(), "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}})
    assert found == replace(node(), pod_ranges=("10.244.7.0/24", "fd00:10:244::/64"))


def test_a_node_may_have_no_status():
    assert decode({"kind": "Node", "metadata": {"name": "node-a"}}) == node()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "Deployment", "apiVersion": "apps/v1"},
        {"kind": "Service", "apiVersion": "serving.knative.dev/v1"},
        {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1beta1"},
        {"kind": "ConfigMap"},
    ],
)
def test_other_kinds_are_not_ours(fields: Manifest):
    assert decode({**service_manifest(), "apiVersion": None, **fields}) is None


def test_the_kind_alone_decides_without_a_version():
    manifest = service_manifest()
    del manifest["apiVersion"]
    assert decode(manifest) == decode(service_manifest())


@pytest.mark.parametrize("fields", [{}, {"kind": ""}, {"kind": 1}, {"apiVersion": "v1"}])
def test_an_object_without_a_kind_is_an_error(fields: Manifest):
    with pytest.raises(SourceError, match=r"^kind: is missing"):
        decode(fields)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "Service: metadata: is missing"),
        ({}, "Service: metadata.name: is missing"),
        ({"name": ""}, "Service: metadata.name: is missing"),
        ({"name": 8}, "Service: metadata.name: must be text, not 8"),
        ({"name": "a\nb"}, "Service: metadata.name: must consist of"),
        ({"name": "Web"}, "Service: metadata.name: must consist of"),
        ({"name": "w" * 64}, "metadata.name: must have at most 63 characters"),
        ([], "Service: metadata: must be an object, not a list"),
        ({"name": "web", "namespace": 3}, "metadata.namespace: must be text, not 3"),
        ({"name": "web", "namespace": "a b"}, "metadata.namespace: must consist of"),
        ({"name": "web", "namespace": "a\nb"}, "Service web: metadata.namespace: must consist of"),
        ({"name": "web", "labels": []}, "Service default/web: metadata.labels: must be an object"),
    ],
)
def test_errors_in_metadata_name_the_field(metadata: Any, message: str):
    with pytest.raises(SourceError) as caught:
        decode({**service_manifest(), "metadata": metadata})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"addressType": None}, "addressType: is missing"),
        ({"addressType": "ipv4"}, "addressType: must be one of FQDN, IPv4, IPv6"),
        (
            {"ports": [{"name": "a", "port": "abc"}]},
            "ports[0].port: must be a whole number from 0",
        ),
        ({"ports": [port_manifest(protocol="ICMP")]}, "ports[0].protocol: must be one of SCTP"),
        ({"endpoints": [endpoint_manifest(addresses="10.1.0.1")]}, "endpoints[0].addresses: must"),
        ({"endpoints": [endpoint_manifest(addresses=[1])]}, "endpoints[0].addresses[0]: must be"),
        ({"endpoints": [endpoint_manifest(), 7]}, "endpoints[1]: must be an object, not 7"),
        (
            {"endpoints": [endpoint_manifest(conditions={"ready": "yes"})]},
            'endpoints[0].conditions.ready: must be true or false, not "yes"',
        ),
        (
            {"endpoints": [endpoint_manifest(hints={"forZones": [{"name": None}]})]},
            "endpoints[0].hints.forZones[0].name: is missing",
        ),
        ({"endpoints": [endpoint_manifest(nodeName=1)]}, "endpoints[0].nodeName: must be text"),
    ],
)
def test_errors_in_a_slice_name_the_field(fields: Manifest, message: str):
    manifest = slice_manifest()
    manifest.update(fields)
    with pytest.raises(SourceError) as caught:
        decode(manifest)
    assert str(caught.value).startswith(f"EndpointSlice default/web-1: {message}")


@pytest.mark.parametrize(
    ("manifest", "longest"), [(service_manifest, 63), (slice_manifest, 253), (node_manifest, 253)]
)
def test_names_have_a_longest_length(manifest: Callable[[str], Manifest], longest: int):
    assert decode(manifest("n" * longest)) is not None
    with pytest.raises(SourceError, match=f"must have at most {longest} characters"):
        decode(manifest("n" * (longest + 1)))


def tainted(*keys: str) -> Manifest:
    taints = [{"key": key, "effect": "NoSchedule", "value": "1"} for key in keys]
    return {**node_manifest(), "spec": {"taints": taints}}


@pytest.mark.parametrize(
    ("keys", "eligible"),
    [
        ((), True),
        (("node.kubernetes.io/unschedulable",), True),
        (("node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler"), False),
    ],
)
def test_a_node_that_the_autoscaler_removes_is_not_eligible(keys: tuple[str, ...], eligible: bool):
    assert decode(tainted(*keys)) == replace(node(), eligible=eligible)


def test_a_node_that_is_being_deleted_is_not_eligible():
    manifest = node_manifest()
    manifest["metadata"]["deletionTimestamp"] = "2025-01-01T00:00:00Z"
    assert decode(manifest) == replace(node(), eligible=False)


def test_a_node_that_takes_no_new_pods_is_eligible():
    manifest = {**node_manifest(), "spec": {"unschedulable": True}}
    assert decode(manifest) == node()


@pytest.mark.parametrize(
    ("taints", "text"),
    [
        (3, r"spec\.taints: must be a list, not 3"),
        ([3], r"spec\.taints\[0\]: must be an object, not 3"),
        ([{"key": 3}], r"spec\.taints\[0\]\.key: must be text, not 3"),
    ],
)
def test_odd_taints_are_named(taints: object, text: str):
    with pytest.raises(SourceError, match=rf"\ANode node-a: {text}\Z"):
        decode({**node_manifest(), "spec": {"taints": taints}})


def test_errors_of_a_node_name_no_namespace():
    manifest = node_manifest()
    manifest["status"]["addresses"] = "192.0.2.1"
    with pytest.raises(SourceError, match=r"^Node node-a: status\.addresses: must be a list"):
        decode(manifest)


def test_long_texts_are_cut():
    manifest = slice_manifest(addressType="x" * 1000)
    with pytest.raises(SourceError) as caught:
        decode(manifest)
    assert len(str(caught.value)) < 150


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "port", "ip", "clientIP"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PATHS = [
    ("metadata", "namespace"),
    ("spec", "ports"),
    ("spec", "clusterIP"),
    ("spec", "ipFamilies"),
    ("spec", "externalIPs"),
    ("spec", "sessionAffinityConfig"),
    ("spec", "loadBalancerSourceRanges"),
    ("metadata", "labels"),
    ("metadata", "name"),
    ("status", "loadBalancer"),
    ("status", "addresses"),
    ("spec", "taints"),
    ("spec", "cidrs"),
    ("metadata", "creationTimestamp"),
    ("metadata", "deletionTimestamp"),
]


@given(
    st.sampled_from(["Service", "EndpointSlice", "Node", "ServiceCIDR"]),
    st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["ports", "endpoints", "spec", "status"]), VALUES, max_size=1),
)
def test_nothing_but_a_source_error_comes_out_of_any_object(kind, nested, top):
    document: Manifest = {"kind": kind, "addressType": "IPv4", "metadata": {"name": "web"}}
    document["spec"] = {"clusterIP": "10.96.0.10", "sessionAffinity": "ClientIP"}
    document["status"] = {}
    for (parent, key), value in nested.items():
        document[parent][key] = value
    message = ""
    try:
        decode({**document, **top})
    except SourceError as error:
        message = str(error)
    assert "\n" not in message


def test_a_service_cidr_has_the_ranges_that_can_be_read_in_their_canonical_form():
    manifest = service_cidr_manifest("more", " 010.96.0.1/12", "fd00:96::1/108", "10.96.0.0", "?/8")
    assert decode(manifest) == ServiceCidr("more", ("10.96.0.0/12", "fd00:96::/108"))
    assert decode(service_cidr_manifest("none")) == ServiceCidr("none", ())


def test_a_service_cidr_that_is_not_ready_yet_or_no_more_counts():
    manifest = service_cidr_manifest("more", "10.96.0.0/12")
    manifest["status"] = {"conditions": [{"type": "Ready", "status": "False"}]}
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decode(manifest) == ServiceCidr("more", ("10.96.0.0/12",))


def test_a_service_cidr_that_cannot_be_read_is_named_without_a_namespace():
    manifest = service_cidr_manifest("more") | {"spec": {"cidrs": "10.96.0.0/12"}}
    with pytest.raises(SourceError, match=r"\AServiceCIDR more: spec.cidrs: must be a list"):
        decode(manifest)


def pod_manifest(value: str | None = None, **spec: object) -> Manifest:
    annotations = {"ebpflb.io/socket-lb": value} if value is not None else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "shop", "annotations": annotations},
        "spec": spec,
        "status": {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]},
    }


@pytest.mark.parametrize(("value", "means"), [("true", True), ("false", False), (None, None)])
def test_a_pod_may_opt_out_of_socket_lb(value: str | None, means: bool | None):
    both = (address("10.1.0.1"), address("fd00::1"))
    assert decode(pod_manifest(value)) == Pod("shop", "web-1", both, means)
    namespace = pod_manifest(value) | {"kind": "Namespace"}
    assert decode(namespace) == PodNamespace("web-1", means)


def test_a_pod_has_a_uid():
    manifest = pod_manifest()
    manifest["metadata"]["uid"] = "5a0c"
    found = decode(manifest)
    assert isinstance(found, Pod)
    assert found.uid == "5a0c"


def test_a_pod_of_the_hosts_network_has_no_address_of_its_own():
    assert decode(pod_manifest("false", hostNetwork=True)) == Pod("shop", "web-1", (), False)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_address_of_a_pod_that_has_finished_may_be_anothers(phase: str):
    manifest = pod_manifest("false")
    manifest["status"]["phase"] = phase
    assert decode(manifest) == Pod("shop", "web-1", (), False)


def test_a_pod_names_what_made_it():
    manifest = pod_manifest()
    owner = {"kind": "StatefulSet", "name": "web", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    found = decode(manifest)
    assert isinstance(found, Pod)
    assert found.workload == "StatefulSet/web"


def test_a_pod_need_not_have_a_status():
    assert decode({"kind": "Pod", "metadata": {"name": "web-1"}}) == Pod("default", "web-1")


def test_an_annotation_that_means_nothing_is_named():
    where = (
        r"\APod shop/web-1: metadata.annotations.ebpflb.io/socket-lb: must be one of true, false"
    )
    with pytest.raises(SourceError, match=where):
        decode(pod_manifest("maybe"))


def test_the_labels_that_decide_are_kept():
    labels = {"canary": "yes", "app": "web", "tier": ""}
    keys = {"tier", "canary", "team"}
    found = decode(service_manifest(labels=labels), keys)
    assert isinstance(found, Service)
    assert found.labels == (("canary", "yes"), ("tier", ""))
    space = {"kind": "Namespace", "metadata": {"name": "default", "labels": {"team": "a"}}}
    assert decode(space, keys) == PodNamespace("default", labels=(("team", "a"),))
    assert decode(service_manifest(labels=labels)) == decode(service_manifest())


def test_where_the_name_of_a_proxy_decides_the_service_is_read_whole():
    manifest = service_manifest(labels={PROXY_LABEL: "other"})
    assert decode(manifest) == replace(service(), ports=())
    assert decode(manifest, {PROXY_LABEL}) == replace(service(), labels=((PROXY_LABEL, "other"),))


def test_a_label_that_decides_must_be_text():
    labels: dict[str, Any] = {"canary": True, "app": 1}
    assert decode(service_manifest(labels=labels))
    with pytest.raises(SourceError, match=r"web: metadata.labels.canary: must be text, not true"):
        decode(service_manifest(labels=labels), ["canary"])

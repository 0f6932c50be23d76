# SPDX-License-Identifier: Apache-2.0
import os

import pytest
import yaml

from ebpflb.errors import ConfigError
from ebpflb.lab import manifests
from ebpflb.lab.layout import LabConfig, Layout, Stack
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.service import Service
from ebpflb.source.decode import decode


def a_layout(family=Stack.DUAL, pods=2):
    return Layout(LabConfig(nodes=2, pods=pods, family=family), 0)


@pytest.mark.parametrize("family", list(Stack))
def test_the_agent_can_read_every_object(family):
    layout = a_layout(family)
    objects = [*manifests.nodes(layout), *manifests.examples(layout)]
    decoded = [decode(each) for each in objects]
    kinds = [type(each) for each in decoded]
    versions = len(family.versions)
    assert kinds.count(Node) == 2
    assert kinds.count(Service) == 4
    assert kinds.count(EndpointSlice) == 4 * versions
    assert all(len(each.ports) == 2 * versions for each in decoded if isinstance(each, Service))


def test_examples_cover_every_kind_of_frontend():
    services = {
        each["metadata"]["name"]: each
        for each in manifests.examples(a_layout())
        if each["kind"] == "Service"
    }
    assert services["echo"]["spec"]["clusterIPs"] == ["10.100.64.11", "fdeb:f1b:0:40::b"]
    assert {port["nodePort"] for port in services["echo-nodeport"]["spec"]["ports"]} == {30080}
    assert services["echo-local"]["spec"]["externalTrafficPolicy"] == "Local"
    assert services["echo-lb"]["status"]["loadBalancer"]["ingress"] == [
        {"ip": "10.100.80.14"},
        {"ip": "fdeb:f1b:0:50::e"},
    ]


def test_slices_name_every_pod_with_its_node_and_port():
    (made,) = [
        each
        for each in manifests.examples(a_layout(Stack.IPV4))
        if each["metadata"]["name"] == "echo-ipv4"
    ]
    assert [(each["addresses"], each["nodeName"]) for each in made["endpoints"]] == [
        (["10.100.129.11"], "node1"),
        (["10.100.129.12"], "node1"),
        (["10.100.130.11"], "node2"),
        (["10.100.130.12"], "node2"),
    ]
    assert {port["port"] for port in made["ports"]} == {8080}


def test_the_local_example_has_endpoints_on_the_first_node_only():
    slices = [
        each
        for each in manifests.examples(a_layout())
        if each["metadata"]["name"].startswith("echo-local-")
    ]
    assert {end["nodeName"] for each in slices for end in each["endpoints"]} == {"node1"}


def test_a_spec_may_say_more_than_the_example():
    spec = ServiceSpec("x", 9, port=53, spec={"sessionAffinity": "ClientIP"})
    made = manifests.service(a_layout(), spec)
    assert made["spec"]["sessionAffinity"] == "ClientIP"
    assert made["spec"]["clusterIP"] == manifests.cluster_ip(a_layout().ranges[0], 9)
    assert "status" not in made


def test_nodes_carry_zone_and_pod_ranges():
    first = manifests.nodes(a_layout())[0]
    assert first["metadata"]["labels"]["topology.kubernetes.io/zone"] == "zone-a"
    assert first["spec"]["podCIDRs"] == ["10.100.129.0/24", "fdeb:f1b:0:101::/64"]


def test_dumped_objects_read_back_the_same():
    objects = manifests.examples(a_layout())
    assert list(yaml.safe_load_all(manifests.dump(objects))) == objects


def test_a_directory_yields_its_manifests_only(tmp_path):
    for name in ("b.yaml", "a.json", "c.yml", ".hidden.yaml", "notes.txt"):
        (tmp_path / name).write_text(name)
    assert manifests.files_of(tmp_path) == {
        "a.json": b"a.json",
        "b.yaml": b"b.yaml",
        "c.yml": b"c.yml",
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.yaml", "cannot be read"), ("notes.txt", "no manifest"), (".", "no manifest")],
)
def test_what_is_no_manifest_is_refused(tmp_path, name, message):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match=message):
        manifests.files_of(tmp_path / name)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    manifests.write_atomically(tmp_path, "a.yaml", b"old")
    with (tmp_path / "a.yaml").open("rb") as reader:
        manifests.write_atomically(tmp_path, "a.yaml", b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "a.yaml").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.yaml"]

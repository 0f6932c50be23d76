# SPDX-License-Identifier: Apache-2.0
"""An encoded object is decoded as the same object."""

from dataclasses import replace

import pytest
from hypothesis import given

from ebpflb.model.extensions.limits import OpenLimit, rate_limit
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, Kind, key_of
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.service import Service, ServiceName
from ebpflb.source.api_types import API_VERSIONS
from ebpflb.source.decode import decode
from ebpflb.source.encode import encode
from tests.builders import (
    Manifest,
    address,
    endpoint,
    endpoint_slice,
    port_manifest,
    port_name,
    service,
    service_manifest,
    service_port,
)
from tests.odd_object import odd
from tests.unit.nonsense_objects import OBJECTS, decoded

KEYS = ("app", "pod-template-hash")
DUAL: Manifest = {
    "clusterIPs": ["fd00::10", "10.96.0.10"],
    "ipFamilies": ["IPv6", "IPv4"],
    "ports": [port_manifest(80, "http", nodePort=30080), port_manifest(53, "dns", "UDP")],
    "externalIPs": ["192.0.2.1", "2001:db8::1"],
}


def again(item: ApiObject) -> ApiObject | None:
    return decode(encode(item), KEYS)


def without_problems(item: ApiObject) -> ApiObject:
    match item:
        case Service():
            return replace(item, problems=())
        case PodLabels():
            return replace(item, problem="")
    return item


@pytest.mark.parametrize("kind", list(Kind))
def test_every_field_that_the_agent_reads_is_written(kind: Kind):
    found = decode({"kind": str(kind), "apiVersion": API_VERSIONS[kind], **odd(kind)}, KEYS)
    assert found is not None
    assert again(found) == without_problems(found)


@pytest.mark.parametrize(
    "item",
    [
        Service(ServiceName("default", "headless")),
        service("web", ejection=0, dsr=False, retry=True),
        service("web", max_open=OpenLimit(9, drops=True), max_open_per_client=OpenLimit(2)),
        service("web", new_per_client=rate_limit(90, per_minute=True, burst=5)),
        service("web", service_port(name=port_name("a"), affinity_timeout=10)),
        decode(service_manifest(**DUAL)),
        endpoint_slice("empty"),
        endpoint_slice("drained", endpoint(), weight=0),
        endpoint_slice("web-1", endpoint(ready=False), endpoint("10.1.0.2", None, serving=False)),
        endpoint_slice("web-1", endpoint(terminating=True, pod="default/web-5", zone="a")),
        Node("a", "zone", (address("10.0.0.1"),), eligible=False),
        Node("a", "", (address("fd00::1"), address("::2")), external=(address("::2"),)),
        Pod("default", "a", workload="CronJob/backup", socket_lb=True),
        Pod("default", "a", (address("10.1.0.1"),)),
        PodNamespace("default"),
        PodLabels("default", "web-1", (("app", "web"), ("version", "v2")), 0),
        PodLabels("default", "web-2"),
    ],
    ids=lambda item: str(key_of(item)),
)
def test_what_is_special_is_written(item: ApiObject):
    assert again(item) == item


@given(OBJECTS)
def test_whatever_was_read_is_written(document: Manifest):
    found = decoded(document)
    if found:
        assert decode(encode(found)) == without_problems(found)

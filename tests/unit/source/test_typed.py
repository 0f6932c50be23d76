# SPDX-License-Identifier: Apache-2.0
"""Typed API objects: JSON and fields give the same result, and an error names place and value."""

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec import Raw

from ebpflb.from_json import from_json
from ebpflb.model.objects.kinds import Kind
from ebpflb.source.api_types import API_TYPES, PodMetadata, ServiceObject, ServiceObjectSpec
from ebpflb.source.typed import FieldError, checked, quickly
from tests.odd_object import odd

# Threads that all begin to read API objects of all kinds at once, each from another kind on.
THREADS = """
import sys, threading
from ebpflb.source.api_types import API_TYPES
from ebpflb.source.typed import FieldError, checked, quickly

def read(first):
    begin.wait()
    for kind in (*kinds[first:], *kinds[:first]):
        quickly(b'{"metadata": {"name": "web"}, "spec": {}}', kind)
        try:
            checked({"metadata": {"name": "web"}, "spec": {}}, kind)
        except FieldError:
            pass

sys.setswitchinterval(1e-6)
kinds = list(API_TYPES.values())
begin = threading.Barrier(len(kinds))
threads = [threading.Thread(target=read, args=(first,)) for first in range(len(kinds))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
DEEP = b'{"a":' * 9990 + b"{}" + b"}" * 9990


def refusal(document: object) -> str:
    with pytest.raises(FieldError) as caught:
        checked(document, ServiceObject)
    return str(caught.value)


def with_spec(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web"}, "spec": spec}


@pytest.mark.parametrize("kind", list(Kind))
def test_json_and_fields_give_the_same(kind: Kind):
    raw = json.dumps(odd(kind)).encode()
    found = quickly(raw, API_TYPES[kind])
    assert found is not None
    assert found == quickly(Raw(raw), API_TYPES[kind]) == checked(odd(kind), API_TYPES[kind])


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"{", b'{"spec":{}}', b'{"metadata":{"name":"web"}} 1'),
        b'{"metadata":{"name":"web"},"spec":{"clusterIP":3}}',
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"web","uid":"\\ud800"}}',
        b'{"metadata":{"name":"web"},"a":NaN}',
        b'{"metadata":{"name":"web","annotations":{"a":1e999}}}',
        b'{"metadata":{"name":"web"},"a":' + DEEP + b"}",
    ],
)
def test_what_is_odd_is_left_to_the_slow_way(raw: bytes):
    assert quickly(raw, ServiceObject) is None


@pytest.mark.parametrize("free", [b'"\xff"', b"9" * 50_000, b"1e999"])
def test_what_is_odd_in_a_field_that_is_not_read_does_not_matter(free: bytes):
    assert quickly(b'{"metadata":{"name":"web"},"a":' + free + b"}", ServiceObject) is not None


@pytest.mark.parametrize("free", [DEEP, b'"\\ud800"', b'{"\\udc00":1}', b"-" + b"9" * 5000])
def test_what_is_odd_but_json_is_the_same_object_in_the_end(free: bytes):
    raw = b'{"metadata":{"name":"web","annotations":{"a":' + free + b"}}}"
    assert checked(from_json(raw), ServiceObject).metadata.name == "web"


def test_of_two_members_with_one_name_the_last_counts():
    raw = b'{"clusterIP":"10.96.0.1","clusterIP":"10.96.0.2"}'
    found = quickly(raw, ServiceObjectSpec)
    assert found == checked(from_json(raw), ServiceObjectSpec)
    assert found is not None
    assert found.cluster_ip == "10.96.0.2"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "must be an object, not a list"),
        ({}, "metadata: is missing"),
        ({"metadata": {"name": None}}, "metadata.name: is missing"),
        ({"metadata": {"name": "web", 3: 4}}, "metadata: must have texts as names"),
        ({"metadata": {"name": "a\n"}}, "metadata.name: must consist of lower-case letters"),
        ({"metadata": {"name": "w" * 64}}, "metadata.name: must have at most 63 characters"),
        (with_spec(clusterIPs=[None]), "spec.clusterIPs[0]: must be text, not null"),
        (with_spec(clusterIPs={3}), "spec.clusterIPs[0]: must be text, not 3"),
        (with_spec(ipFamilies=[""]), 'spec.ipFamilies[0]: must be one of IPv4, IPv6, not ""'),
        (with_spec(ports=3), "spec.ports: must be a list, not 3"),
        (with_spec(ports=[{"port": 10**5000}]), "spec.ports[0].port: must be a whole number from"),
        (with_spec(ports=[{"port": 80.0}]), "spec.ports[0].port: must be a whole number from"),
        (with_spec(type=True), "spec.type: must be one of ClusterIP, ExternalName, LoadBalancer"),
        (with_spec(type="x" * 1000), f'not "{"x" * 40}"'),
    ],
)
def test_an_error_says_where_what_and_how(document: object, text: str):
    line = refusal(document)
    assert line.startswith(text) or line.endswith(text)
    assert "\n" not in line


def test_labels_and_annotations_may_have_any_names_and_values():
    metadata = {"name": "web", "labels": {1: None}, "annotations": {True: [{}]}}
    found = checked(metadata, PodMetadata)
    assert (found.labels, found.annotations) == ({1: None}, {True: [{}]})


def test_threads_that_begin_at_once_do_not_crash():
    runs = [subprocess.run([sys.executable, "-c", THREADS], check=False) for _ in range(10)]
    assert [run.returncode for run in runs] == [0] * 10

# SPDX-License-Identifier: Apache-2.0
"""The content of one file: documents, Lists, and errors with their position."""

import json
import re
from string import ascii_lowercase, digits

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.errors import SourceError
from ebpflb.source.manifest import parse_manifest
from tests.builders import (
    Manifest,
    endpoint,
    endpoint_slice,
    list_manifest,
    node,
    node_manifest,
    service,
    service_manifest,
    slice_manifest,
)

EVERYTHING = [service_manifest(), slice_manifest(), node_manifest()]
OBJECTS = [service(), endpoint_slice("web-1", endpoint()), node()]


def as_yaml(*documents: object) -> bytes:
    return yaml.safe_dump_all(documents).encode()


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


def objects(name: str, raw: bytes) -> list[object]:
    return list(parse_manifest(name, raw).objects.values())


def error(name: str, raw: bytes) -> str:
    with pytest.raises(SourceError) as caught:
        parse_manifest(name, raw)
    return str(caught.value)


def test_a_yaml_file_has_several_documents():
    assert objects("web.yaml", as_yaml(*EVERYTHING)) == OBJECTS
    assert objects("web.yml", b"---\n---\n" + as_yaml(EVERYTHING[0]) + b"---\n") == OBJECTS[:1]


@pytest.mark.parametrize("name", ["web.yaml", "web.json"])
def test_a_list_holds_several_objects(name: str):
    assert objects(name, as_json(list_manifest(*EVERYTHING))) == OBJECTS


def test_a_json_file_holds_one_object():
    assert objects("web.json", as_json(service_manifest())) == OBJECTS[:1]


@pytest.mark.parametrize("name", ["web.yaml", "web.json"])
@pytest.mark.parametrize("raw", [b"", b" \n", b"null"])
def test_a_file_may_be_empty(name: str, raw: bytes):
    assert parse_manifest(name, raw) == ({}, [])


def test_a_yaml_file_may_hold_json():
    assert objects("web.yaml", as_json(service_manifest())) == OBJECTS[:1]


def test_of_one_object_given_twice_the_last_counts():
    changed = service_manifest(cluster_ip="10.96.0.99")
    (found,) = objects("web.yaml", as_yaml(service_manifest(), changed))
    assert found != service()


def test_remarks_report_what_does_not_count():
    unlabelled = slice_manifest()
    unlabelled["metadata"]["labels"] = {}
    documents: list[Manifest] = [
        {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web"}},
        service_manifest("db", cluster_ip="None"),
        unlabelled,
        service_manifest(),
    ]
    content = parse_manifest("web.yaml", as_yaml(*documents))
    assert [key.name for key in content.objects] == ["db", "web"]
    assert content.remarks == [
        "objects of kind Deployment are ignored",
        "Service default/db: not served: it has no ClusterIP or is for another proxy",
        "EndpointSlice default/web-1: ignored: it is headless, names no Service or has no IP "
        "addresses",
    ]


def test_errors_name_the_document():
    broken = service_manifest(ports=[{"port": "abc"}])
    assert error("web.yaml", as_yaml(service_manifest(), broken)) == (
        "document 2: Service default/web: spec.ports[0].port: "
        'must be a whole number from 1 to 65535, not "abc"'
    )


def test_errors_name_the_item_of_a_list():
    listed = list_manifest(service_manifest(), {"kind": "Service"})
    assert error("web.json", as_json(listed)) == (
        "document 1: items[1]: Service: metadata: is missing"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[]", "document 1: must be an object, not a list"),
        (b"7", "document 1: must be an object, not 7"),
        (b"{}", "document 1: kind: is missing, so this is not a Kubernetes object"),
        (b'{"kind": "List", "items": 7}', "document 1: items: must be a list, not 7"),
        (b'{"kind": "List", "items": [7]}', "document 1: items[0]: must be an object, not 7"),
        (b'{"kind": "List", "items": [{"kind": ""}]}', "document 1: items[0]: kind: is missing"),
    ],
)
@pytest.mark.parametrize("name", ["web.yaml", "web.json"])
def test_what_is_no_object_is_an_error(name: str, raw: bytes, message: str):
    assert error(name, raw).startswith(message)


def test_a_list_in_a_list_is_of_no_known_kind():
    content = parse_manifest("web.json", as_json(list_manifest(list_manifest())))
    assert content == ({}, ["objects of kind List are ignored"])


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.json", b'{\n  "kind": }', "document 1: line 2, column 11: Expecting value"),
        ("a.json", b"\xff\xfe{", "document 1: line 1, column 1: Expecting value"),
        ("a.json", b"[" * 100000, "document 1: line 1, column 100001: Expecting an end"),
        ("a.yaml", b"kind: Job\n---\nkind: [\n", "document 2: line 4, column 1: did not find"),
        ("a.yaml", b"kind: \xff", "document 1: cannot be read as YAML: "),
        ("a.yaml", b"a: !!timestamp noon", "document 1: cannot be read as YAML: "),
        ("a.yaml", b"a: !!bool maybe", "document 1: cannot be read as YAML: "),
        ("a.yaml", b"a: !!python/name:os.system", "document 1: line 1, column 4: could not"),
        ("a.yaml", b"a: &x [*x, *y]", "document 1: line 1, column 12: found undefined alias"),
    ],
)
def test_errors_of_syntax_name_the_place(name: str, raw: bytes, message: str):
    text = error(name, raw)
    assert text.startswith(message)
    assert "\n" not in text


@pytest.mark.parametrize(
    "raw",
    [b"a: " + b"[" * 300000, b"- " * 300000, b"".join(b" " * n + b"a:\n" for n in range(1500))],
)
def test_a_file_that_is_nested_too_deeply_is_an_error(raw: bytes):
    # PyYAML 6.0.4 sees brackets before ebpflb counts them.
    ours, theirs = "is nested more than 100 levels deep", "exceeded maximum nesting depth"
    assert re.fullmatch(rf"document 1: (line 1, .*: {theirs}|{ours})", error("a.yaml", raw))


def test_a_file_may_be_nested_a_hundred_levels_deep():
    long_line = b"# " + b"-" * 2000 + b"\n"
    assert "kind" in error("a.yaml", long_line + b"a: " + b"[" * 99 + b"]" * 99)
    assert "deep" in error("a.yaml", long_line + b"a: " + b"[" * 100 + b"]" * 100)


def test_many_brackets_and_long_lines_are_not_depth():
    manifest = service_manifest()
    manifest["metadata"]["annotations"] = {"note": "[" * 3000}
    assert objects("a.yaml", as_yaml(manifest)) == OBJECTS[:1]


def test_an_object_that_contains_itself_does_no_harm():
    assert "items[0]" in error("a.yaml", b"&x {kind: List, items: [{kind: '', spec: *x}]}")


@given(st.text(max_size=40) | st.text(ascii_lowercase + digits + "!&*:[]{}-|> \n'", max_size=30))
def test_nothing_but_a_source_error_comes_out_of_any_text(text: str):
    for name in ("a.yaml", "a.json"):
        message = ""
        try:
            parse_manifest(name, text.encode("utf-8", "surrogatepass"))
        except SourceError as error:
            message = str(error)
        assert "\n" not in message

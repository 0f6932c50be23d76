# SPDX-License-Identifier: Apache-2.0
"""Lists and events as bytes, including objects that cannot be decoded: all others are."""

import json
from collections.abc import Generator
from typing import TypeVar

import pytest

from ebpflb.from_json import JsonError
from ebpflb.source.api_objects import (
    Item,
    Known,
    event_of,
    items_of,
    object_of,
    readable_items_of,
)
from ebpflb.source.api_types import Fields, ListMetadata
from ebpflb.source.typed import FieldError

T = TypeVar("T")
U = TypeVar("U")
GOOD = b'{"metadata":{"name":"good"},"spec":{}}'
HEAD = b'{"metadata":{"name":"odd","namespace":"a","resourceVersion":"7"'
ODD = {"metadata": {"name": "odd", "namespace": "a", "resourceVersion": "7"}}
KNOWN = Known("a", "odd", version="7")
DEEP = b'{"a":' * 9990 + b"{}" + b"}" * 9990
# What the API server keeps in managedFields as a user has sent it.
FREE = [DEEP, b'{"f:\xff\xfe":{}}', b'{"f:a":' + b"9" * 5000 + b"}", b'{"\\ud800":{}}']
BROKEN = [
    (b'},"spec":{"a":}}', "Expecting value"),
    (b'},"spec":[1,{"\\q":1}]}', "Invalid \\escape"),
    (b'},"spec":"\x01"}', "Invalid control character"),
    (b',"labels":{"a" 1}}}', "Expecting ':' delimiter"),
]


def read(items: Generator[T, None, U]) -> tuple[list[T], U]:
    found = []
    while True:
        try:
            found.append(next(items))
        except StopIteration as end:
            return found, end.value


def listed(raw: bytes) -> tuple[list[Item], ListMetadata]:
    return read(items_of(raw))


def fields(item: Item) -> Fields:
    assert not item.problem
    return object_of(item.raw)


def with_managed(free: bytes) -> bytes:
    return HEAD + b',"managedFields":[{"manager":"x","fieldsV1":' + free + b"}]}}"


@pytest.mark.parametrize("free", FREE)
def test_managed_fields_are_left_out_whatever_they_hold(free: bytes):
    odd = with_managed(free)
    page = b'{"metadata":{"resourceVersion":"7"},"items":[' + odd + b"," + GOOD + b"]}"
    items, metadata = listed(page)
    assert [each.known.name for each in items] == ["odd", "good"]
    assert list(map(fields, items)) == [ODD, json.loads(GOOD)]
    assert metadata == ListMetadata("7")
    others = {"metadata": {"resourceVersion": "7"}}
    assert read(readable_items_of(page)) == ([ODD, json.loads(GOOD)], others)
    event = event_of(b'{"type":"DELETED","object":' + odd + b"}")
    assert (event.kind, event.item.known, fields(event.item)) == ("DELETED", KNOWN, ODD)
    assert object_of(odd) == ODD


@pytest.mark.parametrize(("rest", "problem"), BROKEN)
def test_an_object_that_is_no_json_is_named_and_spoils_no_other(rest: bytes, problem: str):
    page = b'{"items":[' + GOOD + b"," + HEAD + rest + b" , " + GOOD + b"]}"
    (first, odd, last), _ = listed(page)
    assert fields(first) == fields(last) == json.loads(GOOD)
    assert odd.known == KNOWN
    assert problem in odd.problem
    assert read(readable_items_of(page)) == ([json.loads(GOOD)] * 2, {})
    event = event_of(b'{"type":"DELETED","object":' + HEAD + rest + b"}")
    assert problem in event.item.problem
    assert (event.kind, event.item.known) == ("DELETED", KNOWN)
    with pytest.raises(JsonError, match=r"^line 1"):
        object_of(HEAD + rest)


def test_of_an_object_without_a_readable_name_the_problem_is_known():
    for raw in (b"3", b"null", b'"a"'):
        item = event_of(b'{"type":"ADDED","object":' + raw + b"}").item
        assert (item.known, item.problem) == (Known(), "must be an object")
    (odd,), _ = listed(b'{"items":[{"metadata":{"name":}}]}')
    assert odd.known == Known()
    assert "Expecting value" in odd.problem


def test_what_is_known_of_an_object_is_text():
    raw = b'{"metadata":{"name":3,"namespace":null,"uid":"5a0c","annotations":[]}}'
    (odd,), _ = listed(b'{"items":[' + raw + b"]}")
    assert (odd.known, odd.problem) == (Known(uid="5a0c"), "")


@pytest.mark.parametrize("raw", [b"{}", b'{"items":null}', b'{"items":[]}'])
def test_a_list_may_be_empty(raw: bytes):
    assert listed(raw)[0] == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"<html>", b'{"items":3}', b'{"items":[', b'{"items":[]}}', b'{"items":[{]}'],
)
def test_what_is_no_list_is_an_error(raw: bytes):
    with pytest.raises(JsonError):
        listed(raw)
    with pytest.raises(JsonError):
        read(readable_items_of(raw))


def test_a_list_of_an_odd_version_is_an_error():
    with pytest.raises(FieldError, match=r"^metadata.resourceVersion: must be text, not 7$"):
        listed(b'{"metadata":{"resourceVersion":7},"items":[]}')


def test_an_event_may_have_its_members_in_any_order():
    raw = b'{"object":' + GOOD + b',"more":[1],"type":"ADDED"}'
    event = event_of(raw)
    assert (event.kind, fields(event.item)) == ("ADDED", json.loads(GOOD))


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"type":"ADDED"}', b'{"object":{}}', b'{"type":3,"object":{}}', b"{} 1"]
)
def test_what_is_no_event_is_an_error(raw: bytes):
    with pytest.raises(JsonError):
        event_of(raw)

# SPDX-License-Identifier: Apache-2.0
"""Lists and events as bytes, with objects in them that cannot be read: all others are."""

import json
from typing import Any

import pytest

from ebpflb.from_json import JsonError
from ebpflb.source.api_objects import Unreadable, WatchEvent, event_of, items_of, object_of
from ebpflb.source.fields import Fields

GOOD = b'{"metadata":{"name":"good"},"spec":{}}'
HEAD = b'{"metadata":{"name":"odd","namespace":"a","resourceVersion":"7"'
KNOWN = {"metadata": {"name": "odd", "namespace": "a", "resourceVersion": "7"}}
DEEP = b'{"a":' * 9990 + b"{}" + b"}" * 9990
# What the API server keeps in managedFields as a user has sent it.
FREE = [DEEP, b'{"f:\xff\xfe":{}}', b'{"f:a":' + b"9" * 5000 + b"}", b'{"\\ud800":{}}']
BROKEN = [
    (b'},"spec":{"a":}}', "Expecting value"),
    (b'},"spec":[1,{"\\q":1}]}', "Invalid \\escape"),
    (b'},"spec":"\x01"}', "Invalid control character"),
    (b',"labels":{"a" 1}}}', "Expecting ':' delimiter"),
]


def listed(raw: bytes) -> tuple[list[Any], Fields]:
    found, items = [], items_of(raw)
    while True:
        try:
            found.append(next(items))
        except StopIteration as end:
            return found, end.value


def with_managed(free: bytes) -> bytes:
    return HEAD + b',"managedFields":[{"manager":"x","fieldsV1":' + free + b"}]}}"


@pytest.mark.parametrize("free", FREE)
def test_managed_fields_are_left_out_whatever_they_hold(free: bytes):
    odd = with_managed(free)
    items, others = listed(
        b'{"metadata":{"resourceVersion":"7"},"items":[' + odd + b"," + GOOD + b"]}"
    )
    assert items == [KNOWN, json.loads(GOOD)]
    assert others == {"metadata": {"resourceVersion": "7"}}
    assert event_of(b'{"type":"DELETED","object":' + odd + b"}") == ("DELETED", KNOWN)
    assert object_of(odd) == KNOWN


@pytest.mark.parametrize(("rest", "problem"), BROKEN)
def test_an_object_that_is_no_json_is_named_and_spoils_no_other(rest: bytes, problem: str):
    items, _ = listed(b'{"items":[' + GOOD + b"," + HEAD + rest + b" , " + GOOD + b"]}")
    first, odd, last = items
    assert first == last == json.loads(GOOD)
    assert isinstance(odd, Unreadable)
    assert odd.known == KNOWN
    assert problem in odd.problem
    event = event_of(b'{"type":"DELETED","object":' + HEAD + rest + b"}")
    assert isinstance(event.item, Unreadable)
    assert (event.kind, event.item.known) == ("DELETED", KNOWN)
    with pytest.raises(JsonError, match=r"^line 1"):
        object_of(HEAD + rest)


def test_of_an_object_without_a_readable_name_the_problem_is_known():
    for raw in (b"3", b"null", b'"a"'):
        assert event_of(b'{"type":"ADDED","object":' + raw + b"}").item == ({}, "must be an object")
    (odd,), _ = listed(b'{"items":[{"metadata":{"name":}}]}')
    assert odd.known == {"metadata": {}}


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


def test_an_event_may_have_its_members_in_any_order():
    raw = b'{"object":' + GOOD + b',"more":[1],"type":"ADDED"}'
    assert event_of(raw) == WatchEvent("ADDED", json.loads(GOOD))


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"type":"ADDED"}', b'{"object":{}}', b'{"type":3,"object":{}}', b"{} 1"]
)
def test_what_is_no_event_is_an_error(raw: bytes):
    with pytest.raises(JsonError):
        event_of(raw)

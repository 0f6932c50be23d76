# SPDX-License-Identifier: Apache-2.0
"""What JSON is decoded to, and that bad bytes raise only one error."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebpflb.from_json import DEEPEST, LARGEST, JsonError, JsonReader, from_json

# More than the API server takes, and many times what Python's decoder does.
LEVELS = 10_000
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST, LARGEST)
    | st.floats(-LARGEST, LARGEST)
    # Half a pair cannot be written in UTF-8; what becomes of it has a test of its own.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\\"), inner),
    max_leaves=20,
)
# Pieces of which JSON, and what is nearly that, is made.
PIECES = st.sampled_from(
    [
        *'[]{}:,"\\ \n1-.e',
        "null",
        "NaN",
        '"a"',
        "\\u",
        "\\ud800",
        "\\udc00",
        "d83d",
        "9" * 5000,
        "e9",
    ]
)
NEARLY = st.lists(PIECES, max_size=30).map(lambda some: "".join(some).encode())


def depth(value: Any) -> int:
    levels = 0
    while isinstance(value, dict | list) and value:
        levels += 1
        value = value["a"] if isinstance(value, dict) else value[0]
    return levels


def objects(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@given(VALUES)
def test_what_json_says_is_the_value(value: Any):
    for ascii_only in (True, False):
        raw = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert from_json(raw) == value
        assert from_json(b" \r\n\t" + raw + b" ") == value


@given(st.binary(max_size=60) | NEARLY)
@example(b'{"a": 1')
@example(b'["' + b'\\"' * 100_000)
@example(b'["' + b"\\\\" * 100_000 + b'"]')
@example(b"[" * LEVELS)
@example(b"[" * LEVELS + b"}" * LEVELS)
@example(b"[" * LEVELS + b"]" * (LEVELS - 1))
@example(b"\xff\xfe\x00")
def test_one_error_alone_comes_of_any_bytes_and_it_is_one_line(raw: bytes):
    message = ""
    try:
        found = from_json(raw)
    except JsonError as error:
        message = str(error)
    else:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    assert "\n" not in message


@pytest.mark.parametrize("raw", [objects(LEVELS), b"[" * LEVELS + b"]" * LEVELS])
def test_of_what_is_too_deep_the_outer_levels_are_kept(raw: bytes):
    assert depth(from_json(raw)) == DEEPEST
    around = from_json(b'{"before": 1, "deep": {"a": ' + raw + b'}, "after": [2, "]}"]}')
    assert (around["before"], around["after"]) == (1, [2, "]}"])
    assert depth(around["deep"]) == DEEPEST - 1


@pytest.mark.parametrize("levels", [DEEPEST - 1, DEEPEST, DEEPEST + 1, 500])
def test_null_stands_for_what_is_deeper_also_where_python_can_read_it(levels: int):
    assert depth(from_json(objects(levels))) == min(levels, DEEPEST)
    wide = [[{"a": [1]}]] * DEEPEST
    assert from_json(json.dumps(wide)) == wide


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'"web\xe9"', "web\ufffd"),
        (b'"\xff\xfe"', "\ufffd\ufffd"),
        (b'{"\xff": 1}', {"\ufffd": 1}),
        (rb'"\ud800 \uDFFF"', "\ufffd \ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud800"', r"\ud800"),
        ("\N{BYTE ORDER MARK}1".encode(), 1),
        ('"ä"'.encode("utf-16"), "ä"),
    ],
)
def test_text_can_always_be_encoded_again(raw: bytes, value: Any):
    assert from_json(raw) == value


@pytest.mark.parametrize("raw", ["1e999", "1e20", "9" * 5000, "9" * 5000 + ".5", str(LARGEST + 1)])
def test_what_stands_for_a_number_that_is_too_large_can_be_added_and_written(raw: str):
    found = from_json(f"[{raw}, -{raw}, {LARGEST}]")
    assert found == [LARGEST, -LARGEST, LARGEST]
    assert from_json(json.dumps(sum(found * 5000), allow_nan=False)) == LARGEST


def test_of_two_members_with_one_name_the_last_counts():
    assert from_json(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "line 1, column 1: Expecting value"),
        (b'{\n  "a": }', "line 2, column 8: Expecting value"),
        (b"[1] 2", "line 1, column 5: Extra data"),
        (b"[" * LEVELS, f"line 1, column {LEVELS + 1}: Expecting an end"),
        (b"[NaN]", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
    ],
)
def test_an_error_says_where(raw: bytes, message: str):
    with pytest.raises(JsonError) as caught:
        from_json(raw)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "raw", [b"{1: 2}", b'{"a" 1}', b'{"a": 1,}', b'{"a": 1 "b": 2}', b"[]", b"", b'{"a": 1']
)
def test_a_reader_refuses_what_is_not_an_object(raw: bytes):
    reader = JsonReader(raw)
    with pytest.raises(JsonError, match=r"^line 1, column \d+: "):
        [reader.value() for _ in reader.members()]


@pytest.mark.parametrize("raw", [b"[1,]", b"[1 2]", b"{}", b"[", b"[,]"])
def test_a_reader_refuses_what_is_not_a_list(raw: bytes):
    reader = JsonReader(raw)
    with pytest.raises(JsonError, match=r"^line 1, column \d+: "):
        [reader.value() for _ in reader.elements()]

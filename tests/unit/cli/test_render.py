# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from enum import StrEnum

import pytest
import yaml

from ebpflb.cli.render import columns, emit, size, visible


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    name: str
    parts: tuple[object, ...]


THING = Thing("a", (1, None, Thing("b", ()), {"k": Colour.RED}))
PLAIN = {"name": "a", "parts": [1, None, {"name": "b", "parts": []}, {"k": "red"}]}


def test_json_and_yaml_say_the_same(capsys):
    emit(THING, "json", list)
    assert json.loads(capsys.readouterr().out) == PLAIN
    emit(THING, "yaml", list)
    assert yaml.safe_load(capsys.readouterr().out) == PLAIN


def test_a_table_is_made_only_when_it_is_wanted(capsys):
    emit(THING, "table", lambda: ["one", "two"])
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_terminal_does_not_obey_what_others_named(capsys):
    emit(THING, "table", lambda: ["process \x1b]0;mine\x07 (1)", "grün"])
    assert capsys.readouterr().out == "process \\x1b]0;mine\\x07 (1)\ngrün\n"
    assert visible({"a": ["x\n", 1, None]}) == {"a": ["x\\n", 1, None]}


def test_columns_are_aligned_and_numbers_stand_to_the_right():
    rows = [("NAME", "COUNT", "WHAT"), ("a", 7, "x"), ("long", 1234, ""), ("b",), ("c", "-")]
    assert list(columns(rows)) == [
        "NAME  COUNT  WHAT",
        "a         7  x",
        "long   1234",
        "b",
        "c         -",
    ]


def test_a_header_alone():
    assert list(columns([("NAME", "COUNT")])) == ["NAME  COUNT"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (25 << 20, "25.0 MiB"),
        (1 << 40, "1024.0 GiB"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text

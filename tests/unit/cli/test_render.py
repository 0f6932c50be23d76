# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from enum import StrEnum

import click
import pytest
import yaml

from ebpflb.cli.render import TextTable, columns, emit, repeat, size, visible
from tests.unit.cli.invoked import interrupt_after


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
    assert list(columns(TextTable(rows))) == [
        "NAME  COUNT  WHAT",
        "a         7  x",
        "long   1234",
        "b",
        "c         -",
    ]


def test_a_header_alone():
    assert list(columns(TextTable([("NAME", "COUNT")]))) == ["NAME  COUNT"]


NODES = TextTable(
    [
        ("NODE", "STATE", "DROPS", "COUNT"),
        ("node1", "in sync", "12 no endpoint", 7),
        "  !! node1: lacks 10.1.0.1:8080",
        ("node2", "no answer"),
    ]
)


def test_columns_that_do_not_fit_stand_below_their_row():
    assert list(columns(NODES, 25)) == [
        "NODE   STATE",
        "    DROPS           COUNT",
        "node1  in sync",
        "    12 no endpoint      7",
        "  !! node1: lacks",
        "      10.1.0.1:8080",
        "node2  no answer",
    ]


def test_a_table_that_just_fits_has_a_line_for_each_row():
    assert max(map(len, columns(NODES))) == 39
    assert list(columns(NODES, 39)) == list(columns(NODES))
    assert len(list(columns(NODES, 38))) > 4


def test_a_cell_wider_than_the_terminal_is_wrapped_between_words():
    assert list(columns(TextTable([("a", "b" * 9 + " " + "c" * 9, "d")]), 20)) == [
        "a",
        "    bbbbbbbbb",
        "        ccccccccc",
        "    d",
    ]


def test_only_a_terminal_is_too_narrow_and_only_for_the_table(screen, capsys):
    problem = f"problem: {'word ' * 20}"
    for output in ("table", "wide"):
        emit(NODES, output, lambda: [NODES, problem])
        assert len(capsys.readouterr().out.splitlines()) == 5
    with screen(30) as shown:
        emit(NODES, "wide", lambda: [NODES, problem])
    assert len(shown.lines()) == 5
    with screen(30) as shown:
        emit(NODES, "table", lambda: [NODES, problem])
    assert max(map(len, shown.lines())) <= 30
    assert shown.text.count("word") == 20


def test_what_a_terminal_would_obey_has_its_room_in_the_table():
    assert list(columns(TextTable([("NAME", "X"), ("\x1b[1m", "y")]))) == [
        "NAME     X",
        "\\x1b[1m  y",
    ]


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


@pytest.mark.parametrize(
    ("output", "shown"),
    [("table", "n\nn\nn\n"), ("jsonl", "1\n2\n3\n"), ("yaml", "---\n- 1\n---\n- 2\n---\n- 3\n")],
)
def test_it_is_shown_again_until_an_interrupt(capsys, monkeypatch, output, shown):
    pauses = interrupt_after(3, monkeypatch)
    rounds = iter(range(1, 9))
    with pytest.raises(click.exceptions.Exit) as end:
        repeat(lambda: [next(rounds)], lambda found: emit(found, output, lambda: "n"), output)
    assert end.value.exit_code == 0
    assert capsys.readouterr().out == shown
    assert pauses == [2, 2, 2]


def test_on_a_terminal_each_table_begins_on_an_empty_screen(monkeypatch, screen):
    interrupt_after(2, monkeypatch)
    with screen(60) as shown, pytest.raises(click.exceptions.Exit):
        repeat(lambda: "", lambda _: emit("", "table", lambda: ["one"]), "table")
    assert shown.text == 2 * "\x1b[2J\x1b[1;1Hone\r\n"

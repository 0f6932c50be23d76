# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import click
import pytest
import yaml

from ebpflb.cli.render import emit, has_colours, show
from ebpflb.cli.table import Column, TextTable, size, visible
from tests.unit.cli.invoked import interrupt_after


def table(*titles, rows):
    """Cells are given as they are; rows may be shorter."""

    def cell(at):
        return lambda row: row[at] if at < len(row) else ""

    return TextTable([Column(title, cell(at)) for at, title in enumerate(titles)], rows)


NODES = table(
    *("NODE", "STATE", "DROPS", "COUNT"),
    rows=[
        ("node1", "in sync", "12 no endpoint", 7),
        "  !! node1: lacks 10.1.0.1:8080",
        ("node2", "no answer"),
    ],
)


def test_columns_are_aligned_and_numbers_stand_to_the_right():
    rows = [("a", 7, "x"), ("long", 1234, ""), ("b",), ("c", "-")]
    assert list(table("NAME", "COUNT", "WHAT", rows=rows).lines()) == [
        "NAME  COUNT  WHAT",
        "a         7  x",
        "long   1234",
        "b",
        "c         -",
    ]


def test_a_header_alone():
    assert list(table("NAME", "COUNT", rows=[]).lines()) == ["NAME  COUNT"]


def test_columns_that_do_not_fit_stand_below_their_row():
    assert list(NODES.lines(25)) == [
        "NODE   STATE",
        "    DROPS           COUNT",
        "node1  in sync",
        "    12 no endpoint      7",
        "  !! node1: lacks",
        "      10.1.0.1:8080",
        "node2  no answer",
    ]


def test_a_table_that_just_fits_has_a_line_for_each_row():
    assert max(map(len, NODES.lines())) == 39
    assert list(NODES.lines(39)) == list(NODES.lines())
    assert len(list(NODES.lines(38))) > 4


def test_a_cell_wider_than_the_terminal_is_wrapped_between_words():
    assert list(table("", "", "", rows=[("a", "b" * 9 + " " + "c" * 9, "d")]).lines(20)) == [
        "a",
        "    bbbbbbbbb",
        "        ccccccccc",
        "    d",
    ]


def test_what_a_terminal_would_obey_has_its_room_in_the_table():
    assert list(table("NAME", "X", rows=[("\x1b[1m", "y")]).lines()) == [
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


def test_what_is_below_a_row_has_titles_of_its_own():
    columns: tuple[Column[Any], ...] = (
        Column("SERVICE", str, lambda part: f"  {part}", "  BACKEND"),
        Column("COUNT", len, len, wide=True),
    )
    shown = TextTable(columns, [("web",)], lambda _: ["no part, but a line"])
    assert list(shown.lines()) == ["SERVICE", "  BACKEND", "('web',)", "no part, but a line"]
    nested = TextTable(columns, [("w", "eb")], lambda row: [(each,) for each in row])
    assert list(nested.lines(is_wide=True)) == [
        "SERVICE      COUNT",
        "  BACKEND",
        "('w', 'eb')      2",
        "  ('w',)         1",
        "  ('eb',)        1",
    ]


RANKED = TextTable(
    (
        Column("NAME", lambda row: row[0], width=8, cut=True),
        Column("SOME", lambda row: row[1], width=5, rank=1, right=True),
        Column("LESS", lambda row: row[2], width=5, rank=2, right=True),
        Column("WHY", lambda row: row[3], width=7, wraps=True),
    ),
    [("! far-too-long", "1k", "2", "many words, and averylongword")],
    gap=" ",
    style=lambda _: {"bold": True},
)


def test_where_columns_have_ranks_the_last_are_left_out():
    lines = [click.unstyle(each).rstrip() for each in RANKED.lines(24)]
    assert lines == [
        "NAME      SOME WHY",
        "! …-long    1k many",
        "               words,",
        "               and",
        "               averylong",
        "               word",
    ]
    assert len(list(RANKED.lines())) == 2


def test_lines_that_come_with_their_rows_make_columns_wider():
    shown = table("NAME", "X", rows=iter([("a", "b"), ("longer", "c"), ("d", "e")]))
    assert list(shown.lines(grows=True)) == ["NAME  X", "a     b", "longer  c", "d       e"]


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


@pytest.mark.parametrize(
    ("output", "shown"),
    [("table", "n\nn\nn\n"), ("jsonl", "1\n2\n3\n"), ("yaml", "---\n- 1\n---\n- 2\n---\n- 3\n")],
)
def test_it_is_shown_again_until_an_interrupt(capsys, monkeypatch, output, shown):
    pauses = interrupt_after(3, monkeypatch)
    rounds = iter(range(1, 9))
    with pytest.raises(KeyboardInterrupt):
        show(lambda: [next(rounds)], lambda _: ["n"], output, watch=True)
    assert capsys.readouterr().out == shown
    assert pauses == [2, 2, 2]


def test_on_a_terminal_each_table_begins_on_an_empty_screen(monkeypatch, screen):
    interrupt_after(2, monkeypatch)
    with screen(60) as shown, pytest.raises(KeyboardInterrupt):
        show(lambda: "", lambda _: ["one"], "table", watch=True)
    assert shown.text == 2 * "\x1b[2J\x1b[1;1Hone\r\n"


def test_without_watch_it_is_shown_once(capsys):
    assert show(lambda: [7], lambda _: ["n"], "jsonl", plain=lambda found: found * 2) == [7]
    assert capsys.readouterr().out == "7\n7\n"


def test_jsonl_has_a_line_for_each_item(capsys):
    emit([1, THING], "jsonl", list)
    emit({"seconds": 2, "items": [3]}, "jsonl", list, [3, 4])
    emit(THING, "jsonl", list)
    found = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert found == [1, PLAIN, 3, 4, PLAIN]


def test_columns_of_the_environment_count_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    emit(NODES, "table", lambda: [NODES])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_that_have_them(monkeypatch, screen, environment, coloured):
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with screen(60):
        assert has_colours() is coloured
    assert not has_colours()

# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from enum import StrEnum

import click
import pytest
import yaml

from ebpflb.cli.render import emit, show
from ebpflb.cli.table import visible
from tests.unit.cli.invoked import interrupt_after
from tests.unit.cli.test_table import NODES


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
    with pytest.raises(click.exceptions.Exit) as end:
        show(lambda: [next(rounds)], lambda _: ["n"], output, watch=True)
    assert end.value.exit_code == 0
    assert capsys.readouterr().out == shown
    assert pauses == [2, 2, 2]


def test_on_a_terminal_each_table_begins_on_an_empty_screen(monkeypatch, screen):
    interrupt_after(2, monkeypatch)
    with screen(60) as shown, pytest.raises(click.exceptions.Exit):
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

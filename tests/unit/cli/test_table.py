# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from ebpflb.cli.table import Column, Table, size


def table(*titles, rows):
    """Cells are given as they are; rows may be shorter."""

    def cell(at):
        return lambda row: row[at] if at < len(row) else ""

    return Table([Column(title, cell(at)) for at, title in enumerate(titles)], rows)


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
    shown = Table(columns, [("web",)], lambda _: ["no part, but a line"])
    assert list(shown.lines()) == ["SERVICE", "  BACKEND", "('web',)", "no part, but a line"]
    nested = Table(columns, [("w", "eb")], lambda row: [(each,) for each in row])
    assert list(nested.lines(is_wide=True)) == [
        "SERVICE      COUNT",
        "  BACKEND",
        "('w', 'eb')      2",
        "  ('w',)         1",
        "  ('eb',)        1",
    ]


RANKED = Table(
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
    lines = [each.replace("\x1b[1m", "").replace("\x1b[0m", "") for each in RANKED.lines(24)]
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

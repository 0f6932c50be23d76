# SPDX-License-Identifier: Apache-2.0
import json
import os
import pty
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebpflb.cli import main
from ebpflb.cli import top as command
from ebpflb.cli.top_table import bar, fitting, ordered, percent, rate
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.flow import ServiceRate
from tests.memory_maps import memory_maps
from tests.unit.cli.invoked import output_of
from tests.unit.dataplane.desired import backends, by_service, frontend, named


def service(name="web", **fields) -> ServiceRate:
    numbers = "connections refused dropped failed retransmits original_bytes reply_bytes"
    plain = dict.fromkeys(numbers.split(), 0.0)
    shares = dict.fromkeys(("largest_share", "even_share", "cross_node_share"))
    rest = {"active": 0, "endpoints": 1, "troubles": (), "backends": (), **shares}
    return ServiceRate("default", name, "http", "TCP", **{**plain, **rest, **fields})


@pytest.fixture
def maps(monkeypatch):
    made = memory_maps()
    opened = Generation(1, 1, Path("/pins/1-1")), made
    monkeypatch.setattr(command, "open_pins", lambda _: opened)
    served = frontend(choice=backends("10.1.0.1", "10.1.0.2"), service=named("web", "http"))
    Sync(made, quiesce=lambda: None).resync(
        by_service(served, frontend("10.96.0.9", service=named("empty")))
    )
    return made


def run(*arguments, **environment):
    return output_of("top", "--interval", "0.1", *arguments, env=environment)


def test_one_table_where_there_is_no_terminal(maps):
    header, *rows = run("--sort", "name").splitlines()
    assert header.split() == [
        *("SERVICE", "CONN/S", "ACTIVE", "FAIL/S", "B/S", "TO/FROM", "SPREAD"),
        *("FAR", "BACKENDS", "TROUBLE"),
    ]
    assert [row.split() for row in rows] == [
        ["!", "default/empty", "0", "0", "0", "0/0", "-", "-", "0", "no", "endpoint"],
        ["default/web:http", "0", "0", "0", "0/0", "-", "-", "2", "-"],
    ]


def test_backends_stand_below_their_service(maps):
    rows = [row.split() for row in run("--backends", "--sort", "name").splitlines()]
    assert rows[3] == ["10.1.0.1:8080", "0", "0", "0", "0/0", "-", "remote"]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100])
def test_a_narrow_table_keeps_what_matters_most(maps, columns):
    lines = run("--backends", COLUMNS=str(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("! ") and "empty" in line for line in lines)
    assert ("CONN/S" in lines[0], "FAIL/S" in lines[0]) == (columns >= 40, columns >= 40)
    assert ("TROUBLE" in lines[0]) is (columns >= 80)


def test_json_is_one_sample(maps):
    shown = json.loads(run("-o", "json", "--sort", "trouble"))
    assert shown["seconds"] >= 0.1
    assert [each["service"] for each in shown["services"]] == ["empty", "web"]
    assert shown["services"][0]["troubles"] == ["no endpoint"]
    assert len(shown["services"][1]["backends"]) == 2


def test_a_wrong_interval_is_told_in_one_line(maps):
    done = CliRunner().invoke(main, ["top", "--interval", "0"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (9.5, "9.5"),
        (12.3, "12"),
        (999, "999"),
        (1500, "1.5k"),
        (2e7, "20M"),
    ],
)
def test_rates_are_short(number, shown):
    assert rate(number) == shown


def test_shares_are_percent_and_bars():
    assert (percent(0.256), percent(None)) == ("26%", "-")
    assert (bar(0.5), bar(None)) == ("####", "")


def test_the_order_is_the_largest_first_then_by_name():
    busy, lossy = service("busy", connections=9.0), service("a", failed=3.0)
    even = service("b")
    assert ordered([even, lossy, busy], "connections") == [busy, lossy, even]
    assert ordered([even, busy, lossy], "failures") == [lossy, even, busy]
    assert ordered([busy, even, lossy], "name") == [lossy, even, busy]


def test_columns_are_left_out_by_rank():
    assert [column.title for column in fitting(40, 16)] == ["CONN/S", "ACTIVE", "FAIL/S"]
    assert fitting(10, 16) == []


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard input; gives the other end."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


def test_a_key_is_read_at_once(terminal):
    with command.keys() as press:
        os.write(terminal, b"q")
        assert press(5) == "q"
        assert press(0.01) == ""


def test_without_a_terminal_the_time_passes(monkeypatch, tmp_path):
    with (tmp_path / "file").open("w+") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with command.keys() as press:
            assert press(0.01) == ""


def test_one_namespace_is_shown_alone(maps):
    every = json.loads(run("-o", "json", "--once"))["services"]
    assert {each["namespace"] for each in every} == {"default"}
    assert json.loads(run("-o", "json", "-n", "shop"))["services"] == []
    assert "cannot be used together" in output_of("top", "-n", "shop", "-A", status=2)


def test_the_short_answer_has_digests_of_what_carries_nothing(maps):
    shown = json.loads(run("--short"))
    (web,) = shown["digests"]
    assert [row[0] for row in shown["services"]] == [["default", "empty", "", "TCP"]]
    (found,) = json.loads(run("-o", "json", "--digest", web))["services"]
    assert found["service"] == "web"
    assert json.loads(run("--short", "-n", "shop"))["digests"] == []

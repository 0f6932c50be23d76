# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli import main
from ebpflb.config.values import duration
from tests.unit.kubectl.answers import connection


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    nodes.say("a", "connections", connection(1, age=5.0) + connection(2, age=50.0, removed=True))
    nodes.say("b", "connections", connection(3, age=20.0, pod="default/other"))
    return nodes


def test_connections_of_all_nodes_come_oldest_first_with_their_node(two):
    header, *rows = two.run("connections", "-A").stdout.splitlines()
    assert re.split(r"\s{2,}", header)[:3] == ["NODE", "STATE", "CLIENT"]
    shown = [re.split(r"\s{2,}", row)[:3:2] for row in rows]
    assert shown == [["a", "default/curl:2"], ["b", "default/other:3"], ["a", "default/curl:1"]]


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        ("client", [("default/curl", 2, 1), ("default/other", 1, 0)]),
        ("node", [("a", 2, 1), ("b", 1, 0)]),
        ("service", [("shop/web", 3, 1)]),
        ("backend", [("shop/web-0", 3, 1)]),
    ],
)
def test_they_are_counted_over_all_nodes(two, by, counts):
    found = json.loads(two.run("connections", "-A", "--by", by, "-o", "json").stdout)
    assert [tuple(each.values()) for each in found] == counts


def test_agents_understand_what_they_are_asked(two):
    two.run(
        *("connections", "-n", "shop", "--service", "web", "--from", "curl"),
        *("--backend-gone", "--older", "1h30m"),
    )
    argv = two.objects.executed[0]
    assert argv[4:7] == ["ebpflb", "connections", "--output=jsonl"]
    understood = main.commands["connections"].make_context("connections", argv[6:]).params
    assert (understood["namespace"], understood["service"]) == ("shop", "shop/web")
    assert (understood["source"], understood["older"]) == ("shop/curl", "5400.0s")
    assert understood["backend_gone"]


def test_agents_understand_weeks(two):
    two.run("connections", "--older", "500h")
    (older,) = (each for each in two.objects.executed[0] if each.startswith("--older="))
    assert duration(older.removeprefix("--older=")) == 500 * 3600


def test_a_line_that_is_none_costs_that_line(two):
    two.say("b", "connections", '{"path": 7}\n' + connection(4))
    done = two.run("connections", "-A", status=1)
    assert len(done.stdout.splitlines()) == 4
    assert done.stderr.startswith("b: a line that cannot be read: ")


def test_a_node_that_fails_is_named_and_the_others_are_shown(two):
    two.fail("b", "connections", "Error: nothing is loaded\n")
    done = two.run("connections", "-A", status=1)
    assert done.stderr == "b: nothing is loaded\n"
    assert len(done.stdout.splitlines()) == 3

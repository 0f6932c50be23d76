# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, service


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    say(nodes, "a", service(backend("10.1.0.1", 30.0), backend("10.1.0.2"), far=1.0))
    say(nodes, "b", service(backend("10.1.0.1", 6.0), backend("10.1.0.2", 4.0), far=0.0))
    return nodes


def say(nodes, node, *services):
    nodes.say(node, "top", {"seconds": 2.0, "services": services})


def test_numbers_of_the_nodes_are_added_up(two):
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["connections"] == 40
    assert found["failed"] == 2
    assert found["endpoints"] == 2
    assert found["cross_node_share"] == 0.75
    assert (found["largest_share"], found["even_share"]) == (0.9, 0.5)
    shares = [(each["address"], each["connections"], each["share"]) for each in found["backends"]]
    assert shares == [("10.1.0.1", 36, 0.9), ("10.1.0.2", 4, 0.1)]


def test_a_trouble_of_some_nodes_says_how_many(two):
    say(two, "b", service(troubles=["no local endpoint", "10.1.0.1 gets nothing"]))
    say(two, "a", service(troubles=["no local endpoint"]))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["troubles"] == ["no local endpoint", "10.1.0.1 gets nothing (1 node)"]
    assert two.run("top").stdout.splitlines()[1].startswith("! default/web:http")


def test_a_backend_that_one_node_has_ejected_is_shown_as_such(two):
    say(two, "a", service(backend("10.1.0.1", standing="ejected", local=True)))
    rows = two.run("top", "--backends").stdout.splitlines()
    assert re.search(r"10\.1\.0\.1:8080 .* ejected$", rows[2])


def test_a_list_is_of_one_namespace_or_of_all_and_sorted(two):
    shop = service(backend("10.1.0.9", 99.0), namespace="shop")
    say(two, "a", shop, service(backend("10.1.0.1", 1.0)))
    assert "shop" not in two.run("top").stdout
    rows = two.run("top", "-A").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["shop/web:http", "default/web:http"]


def test_address_families_are_compared_each_by_itself(two):
    say(two, "a", service(backend("10.1.0.1", 3.0), backend("fd00::1", 1.0)))
    say(two, "b")
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert [each["share"] for each in found["backends"]] == [1.0, 1.0]


def test_without_connections_there_are_no_shares(two):
    for node in "ab":
        say(two, node, service(backend("10.1.0.1", active=0)))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["largest_share"] is None
    assert found["cross_node_share"] is None


def test_all_nodes_count_for_the_same_time(two):
    two.run("top", "--interval", "0.5")
    assert {argv[-1] for argv in two.objects.executed} == {"--interval=0.5"}
    given = ["--interval", "30", "--timeout", "20"]
    assert "must be longer" in two.run("top", *given, status=2).stderr


@pytest.mark.parametrize("wrong", [{"connections": "many"}, {"backends": [{}]}, {"troubles": None}])
def test_nonsense_is_one_line_and_the_others_are_shown(two, wrong):
    say(two, "b", {**service(), **wrong})
    done = two.run("top", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(.*\)\n", done.stderr)
    assert len(done.stdout.splitlines()) == 2


def test_the_wide_table_has_all_columns(two):
    assert "TROUBLE" in two.run("top", "-o", "wide").stdout


def test_it_counts_again_until_an_interrupt_without_a_pause(two, monkeypatch):
    pauses = interrupt_after(2, monkeypatch, between=lambda: say(two, "a"))
    found = map(json.loads, two.run("top", "-w", "-o", "jsonl").stdout.splitlines())
    assert [each["connections"] for each in found] == [40, 10]
    assert pauses == [0, 0]

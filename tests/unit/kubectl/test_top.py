# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.model.compact import compact
from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, compact_top, service


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    say(nodes, "a", service(backend("10.1.0.1", 30.0), backend("10.1.0.2"), far=1.0))
    say(nodes, "b", service(backend("10.1.0.1", 6.0), backend("10.1.0.2", 4.0), far=0.0))
    return nodes


def say(nodes, node, *services):
    nodes.say(node, "top --compact", compact_top(*services))


def idle(address, **more):
    numbers = ("active", "failed", "original_bytes", "reply_bytes")
    return backend(address, **dict.fromkeys(numbers, 0), **more)


def idle_service(*backends, **more):
    numbers = ("refused", "dropped", "retransmits", "failed", "original_bytes", "reply_bytes")
    return service(*backends, active=0, **dict.fromkeys(numbers, 0.0), **more)


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
    say(two, "a", service(backend("10.1.0.1", ejection="ejected", local=True)))
    rows = two.run("top", "--backends").stdout.splitlines()
    assert re.search(r"10\.1\.0\.1:8080 .* ejected$", rows[2])


def test_connections_on_removed_pods_are_those_of_all_nodes(two):
    def old(active, **more):
        gone = {"offered": False, "removed": True, "active": active}
        return backend("10.1.0.1", **gone, **more)

    new = backend("10.1.0.2", active=0, pod="shop/new")
    told = ["6 of 6 connections on removed pods", "new pod shop/new idle"]
    say(two, "a", service(old(6, pod="shop/old"), new, troubles=told))
    say(two, "b", service(old(4), new, troubles=["4 of 4 connections on removed pods"]))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["troubles"] == [
        "10 of 10 connections on removed pods",
        "new pod shop/new idle (1 node)",
    ]
    say(two, "b", service(old(0), backend("10.1.0.3", active=7)))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["troubles"] == ["new pod shop/new idle (1 node)"]
    rows = two.run("top", "--backends").stdout.splitlines()
    assert re.search(r"shop/old:8080 .* removed$", rows[2])


def test_pods_are_named_by_their_own_node(two):
    say(two, "a", service(backend("10.1.0.1", pod="shop/web-1"), backend("10.1.0.2", pod="x")))
    say(two, "b", service(backend("10.1.0.1"), backend("10.1.0.2", local=True, pod="shop/web-2")))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert [each["pod"] for each in found["backends"]] == ["", "shop/web-2"]


def test_one_service_is_shown_alone_even_if_it_is_idle(two):
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1")), service(name="busy"))
    rows = two.run("top", "--service", "web").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["default/web:http"]
    rows = two.run("top").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["default/busy:http", "1"]
    assert len(two.run("top", "--all").stdout.splitlines()) == 3
    wrong = two.run("top", "--service", "wep", status=1)
    assert "no Service default/wep is served (did you mean default/web?)" in wrong.stderr
    two.run("top", "-n", "default", "--service", "shop/x", status=1)
    assert two.objects.executed[-1][-1] == "--namespace=shop"


def test_a_list_is_of_one_namespace_which_agents_choose_or_of_all_and_sorted(two):
    shop = service(backend("10.1.0.9", 99.0), namespace="shop")
    web = service(backend("10.1.0.1", 1.0))
    say(two, "a", shop, web)
    two.say("a", "top --compact --interval=2 --namespace=default", compact_top(web))
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
    two.run("top", "-A", "--interval", "0.5")
    assert {argv[-1] for argv in two.objects.executed} == {"--interval=0.5"}
    given = ["--interval", "30", "--timeout", "20"]
    assert "must be longer" in two.run("top", *given, status=2).stderr


_NAME = ["default", "web", "http", "TCP"]
_FORM = [_NAME, [[["10.1.0.1", 80], False, 0]]]
_STATE = [False, False, True, 0, "", False, ""]
_ROW = [_FORM, [0] * 8, None, [], [0] * 5, [[["10.1.0.1", 80], [0] * 5, _STATE]]]


def test_the_row_that_nonsense_is_made_of_is_right(two):
    two.say("b", "top --compact", compact([_ROW]))
    assert len(two.run("top", "--backends").stdout.splitlines()) == 5


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (0, [["a"], []]),
        (0, [_NAME, [[["10.1.0.1", "http"], False, 0]]]),
        (0, [_NAME, [[["10.1.0.1", 80], False, 4]]]),
        (0, [_NAME, []]),
        (1, ["many"] * 8),
        (1, [0] * 7),
        (1, [-1] * 8),
        (1, [1 << 63] * 8),
        (2, "far"),
        (3, None),
        (4, 7),
        (4, [0] * 4),
        (4, [0] * 10),
        (4, ["many"] * 5),
        (5, [[["10.1.0.1", 80], [0] * 4, _STATE]]),
        (5, [[["10.1.0.1", 80], [0] * 5, [*_STATE[:4], 7]]]),
    ],
)
def test_nonsense_is_one_line_and_the_others_are_shown(two, at, wrong):
    row = [*_ROW[:at], wrong, *_ROW[at + 1 :]]
    two.say("b", "top --compact", compact([row]))
    done = two.run("top", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(.*\)\n", done.stderr)
    assert len(done.stdout.splitlines()) == 2


def test_what_is_idle_everywhere_is_shown_once(two):
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1"), idle("10.1.0.2")))
    (found,) = json.loads(two.run("top", "-A", "-o", "json").stdout)
    assert (found["endpoints"], found["connections"], found["troubles"]) == (2, 0, [])
    assert [each["address"] for each in found["backends"]] == ["10.1.0.1", "10.1.0.2"]


def test_a_backend_that_one_node_alone_knows_is_shown(two):
    say(two, "a", idle_service(idle("10.1.0.1")))
    say(two, "b", idle_service(idle("10.1.0.1"), idle("10.1.0.2")))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["endpoints"] == 2


def test_idle_backends_count_where_shares_are_compared(two):
    say(two, "a", service(backend("10.1.0.1", 3.0), idle("10.1.0.2"), far=1.0))
    say(two, "b", idle_service(idle("10.1.0.1"), idle("10.1.0.2"), idle("10.1.0.3", local=True)))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert (found["endpoints"], found["largest_share"], found["even_share"]) == (3, 1.0, 1 / 3)
    local = {each["address"] for each in found["backends"] if each["local"]}
    assert local == {"10.1.0.3"}


def test_who_watches_sees_no_more_of_what_is_gone(two, monkeypatch):
    def rename():
        for node in "ab":
            say(two, node, idle_service(idle("10.1.0.1"), name="other"))

    interrupt_after(2, monkeypatch, between=rename)
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1")))
    shown = two.run("top", "-w", "-o", "jsonl", status=INTERRUPTED).stdout.splitlines()
    assert [json.loads(line)["service"] for line in shown] == ["web", "other"]


def test_a_node_that_fails_is_named(two):
    two.fail("a", "top --compact", "Error: out of memory")
    done = two.run("top", status=1)
    assert done.stderr == "a: out of memory\n"
    assert len(done.stdout.splitlines()) == 2


def test_the_wide_table_has_all_columns(two):
    assert "TROUBLE" in two.run("top", "-o", "wide").stdout


def test_it_counts_again_until_an_interrupt_without_a_pause(two, monkeypatch):
    pauses = interrupt_after(2, monkeypatch, between=lambda: say(two, "a"))
    found = map(
        json.loads, two.run("top", "-w", "-o", "jsonl", status=INTERRUPTED).stdout.splitlines()
    )
    assert [each["connections"] for each in found] == [40, 10]
    assert pauses == [0, 0]

# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli.digests.rates import PortForm
from ebpflb.kubectl.top import service_rate
from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, service, short_top


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    say(nodes, "a", service(backend("10.1.0.1", 30.0), backend("10.1.0.2"), far=1.0))
    say(nodes, "b", service(backend("10.1.0.1", 6.0), backend("10.1.0.2", 4.0), far=0.0))
    return nodes


def say(nodes, node, *services):
    nodes.say(node, "top --short", short_top(*services))
    nodes.say(node, "top --once", {"seconds": 2.0, "services": services})


def idle(address, **more):
    numbers = ("active", "failed", "original_bytes", "reply_bytes")
    return backend(address, **dict.fromkeys(numbers, 0), **more)


def idle_service(*backends, **more):
    numbers = ("refused", "dropped", "retransmits", "failed", "original_bytes", "reply_bytes")
    return service(*backends, active=0, **dict.fromkeys(numbers, 0.0), **more)


def asked_whole(nodes):
    """For each time that a node was asked for more than digests: for which."""
    asked = [argv for argv in nodes.objects.executed if "--once" in argv]
    return [[each for each in argv if each.startswith("--digest")] for argv in asked]


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
    assert "no Service default/wep (did you mean default/web?)" in wrong.stderr
    two.run("top", "-n", "default", "--service", "shop/x", status=1)
    assert two.objects.executed[-1][-1] == "--namespace=shop"


def test_a_list_is_of_one_namespace_which_agents_choose_or_of_all_and_sorted(two):
    shop = service(backend("10.1.0.9", 99.0), namespace="shop")
    web = service(backend("10.1.0.1", 1.0))
    say(two, "a", shop, web)
    two.say("a", "top --short --interval=2 --namespace=default", short_top(web))
    whole = {"seconds": 2.0, "services": [web]}
    two.say("a", "top --once -o json --interval=2 --namespace=default", whole)
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


_NO_STATE = [["a", "b", "c", "TCP"], [0] * 8, None, [], "10.1.0.1:80", [[0]] * 5, {}]


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (0, ["a"]),
        (1, ["many"] * 8),
        (1, [0] * 7),
        (2, "far"),
        (3, None),
        (4, "10.1.0.1:http"),
        (4, ""),
        (4, 7),
        (5, [[0]] * 4),
        (5, [["many"]] * 5),
        (6, {"10.1.0.1:80": {"standing": "odd"}}),
        (6, {"10.1.0.1:80": {"odd": 1}}),
    ],
)
def test_nonsense_is_one_line_and_the_others_are_shown(two, at, wrong):
    row = [*_NO_STATE[:at], wrong, *_NO_STATE[at + 1 :]]
    two.say("b", "top --short", {"seconds": 2.0, "digests": [], "services": [row]})
    done = two.run("top", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(.*\)\n", done.stderr)
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("seconds", [5e-324, 0, -1])
def test_no_rate_of_an_agent_is_infinite(two, seconds):
    two.say("b", "top --short", {"seconds": seconds, "digests": [], "services": [_NO_STATE]})
    done = two.run("top", status=1)
    assert done.stderr.startswith(
        "b: an answer that this version cannot read (ValueError: rates of "
    )
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("wrong", [{"connections": "many"}, {"backends": [{}]}, {"troubles": None}])
def test_nonsense_of_an_agent_that_is_asked_for_all_is_one_line(two, wrong):
    two.say("a", "top --once", {"seconds": 2.0, "services": [{**service(), **wrong}]})
    done = two.run("top", "--parallel=1", status=1)
    assert re.fullmatch(r"a: an answer that this version cannot read \(.*\)\n", done.stderr)


def test_what_is_idle_everywhere_is_told_by_one_node(two):
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1"), idle("10.1.0.2")))
    (found,) = json.loads(two.run("top", "-A", "-o", "json").stdout)
    assert (found["endpoints"], found["connections"], found["troubles"]) == (2, 0, [])
    assert [each["address"] for each in found["backends"]] == ["10.1.0.1", "10.1.0.2"]
    assert asked_whole(two) == [[]]


def test_idle_backends_of_another_form_are_asked_for_alone(two):
    say(two, "a", idle_service(idle("10.1.0.1")))
    other = idle_service(idle("10.1.0.1"), idle("10.1.0.2"))
    say(two, "b", other)
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["endpoints"] == 2
    digest = PortForm.of(service_rate(other)).digest
    assert asked_whole(two) == [[], [f"--digest={digest}"]]


def test_idle_backends_count_where_shares_are_compared(two):
    say(two, "a", service(backend("10.1.0.1", 3.0), idle("10.1.0.2"), far=1.0))
    say(two, "b", idle_service(idle("10.1.0.1"), idle("10.1.0.2"), idle("10.1.0.3", local=True)))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert (found["endpoints"], found["largest_share"], found["even_share"]) == (3, 1.0, 1 / 3)
    local = {each["address"] for each in found["backends"] if each["local"]}
    assert local == {"10.1.0.3"}


def test_backends_of_each_node_alone_need_no_further_question(two):
    say(two, "a", idle_service(idle("10.1.0.1", local=True)))
    say(two, "b", idle_service(idle("10.1.0.2", local=True)))
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["endpoints"] == 2
    assert asked_whole(two) == [[]]


def test_a_form_that_vanishes_in_between_is_asked_for_again_and_traffic_counts_once(two):
    def change_and_answer(pod, argv):
        if any(each.startswith("--digest") for each in argv):
            for node in "ab":
                say(two, node, service(backend("10.1.0.1", 1.0), idle("10.1.0.9")))
        return two.answer(pod, argv)

    say(two, "a", service(backend("10.1.0.1", 1.0), idle("10.1.0.9")))
    say(two, "b", service(backend("10.1.0.1", 1.0), idle("10.1.0.2")))
    two.objects.command = change_and_answer
    (found,) = json.loads(two.run("top", "-o", "json").stdout)
    assert found["connections"] == 2
    assert [each["address"] for each in found["backends"]] == ["10.1.0.1", "10.1.0.9"]


def test_whoever_watches_asks_for_the_whole_once_and_forgets_what_is_gone(two, monkeypatch):
    def rename():
        asked.append(len(asked_whole(two)))
        for node in "ab":
            say(two, node, idle_service(idle("10.1.0.1"), name="other"))

    asked: list[int] = []
    rename()
    interrupt_after(3, monkeypatch, between=rename)
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1")))
    shown = two.run("top", "-w", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["service"] for line in shown] == ["web", "other", "other"]
    assert asked[1:] == [1, 2]
    assert len(asked_whole(two)) == 2


def test_a_node_whose_details_do_not_come_is_named(two):
    for node in "ab":
        say(two, node, idle_service(idle("10.1.0.1")))
    two.fail("a", "top --once", "Error: out of memory")
    done = two.run("top", "--parallel=1", status=1)
    assert done.stderr == "a: out of memory\n"
    assert "1 idle Service port is not shown" in done.stdout


def test_the_wide_table_has_all_columns(two):
    assert "TROUBLE" in two.run("top", "-o", "wide").stdout


def test_it_counts_again_until_an_interrupt_without_a_pause(two, monkeypatch):
    pauses = interrupt_after(2, monkeypatch, between=lambda: say(two, "a"))
    found = map(json.loads, two.run("top", "-w", "-o", "jsonl").stdout.splitlines())
    assert [each["connections"] for each in found] == [40, 10]
    assert pauses == [0, 0]

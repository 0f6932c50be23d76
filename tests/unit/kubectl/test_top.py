# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.model.compact import compact, packed
from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, compact_past, compact_top, service


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


@pytest.fixture
def past(two):
    busy = service(backend("10.1.0.1", 3.0, failed=3.0), troubles=["10.1.0.1 answers nobody"])
    for node in "ab":
        other = service(backend("10.1.0.9", 1.0), name=f"only-{node}")
        told = {"count": 100, "lost": 7, "sample": 10}
        two.say(node, "top --compact --at=", compact_past(busy, other, **told))
    return two


def test_of_the_past_agents_are_asked_for_the_same_time(past):
    past.run("top", "--at", "2026-11-24T03:10Z", "--window", "5m")
    for argv in past.objects.executed:
        assert argv[4:] == [
            *("ebpflb", "top", "--compact", "--at=2026-11-24T03:10:00.000000000Z"),
            *("--window=300", "--namespace=default"),
        ]
    past.run("top", "-A", "--at", "10m")
    assert {each[7] for each in past.objects.executed[-2:]} == {past.objects.executed[-1][7]}


def test_of_the_past_numbers_are_added_up_and_unknown_ones_are_lines(past):
    head, _, *rows = past.run("top", "--at", "2026-11-24T03:10Z").stdout.splitlines()
    told, missing, sample = head.split("; ")
    assert told.startswith("200 flow records from Nov 2")
    assert missing == "up to 14 are missing (flow-rate, or not kept)"
    assert sample == "one flow in 10 is recorded (flow-sample)"
    assert [" ".join(row.split()) for row in rows] == [
        "! default/web:http 6.0 - 6.0 2.0/2.0 - - - 10.1.0.1 answers nobody",
        "default/only-a:http 1.0 - 3.0 1.0/1.0 - - - -",
        "default/only-b:http 1.0 - 3.0 1.0/1.0 - - - -",
    ]


def test_of_the_past_a_pod_has_its_name_if_its_own_node_recorded_nothing(past):
    web = service(backend("10.1.0.1", 3.0, pod="default/web-0"))
    past.say("a", "top --compact --at=", compact_past(web))
    past.say("b", "top --compact --at=", compact_past())
    rows = past.run("top", "--at", "2026-11-24T03:10Z", "--backends").stdout.splitlines()
    assert rows[-1].split()[:2] == ["default/web-0:8080", "3.0"]


def test_of_the_past_json_has_what_it_was_made_of_and_lines_are_services(past):
    given = ("top", "--at", "2026-11-24T03:10Z", "--window", "2m", "--service", "web")
    found = json.loads(past.run(*given, "-o", "json").stdout)
    assert found["records"] == {
        "begin": "2026-11-24T03:08:00.000000000Z",
        "end": "2026-11-24T03:10:00.000000000Z",
        "count": 200,
        "lost": 14,
        "sample": 10,
        "oldest": "2026-11-24T02:09:00.000000000Z",
    }
    (web,) = found["services"]
    assert (web["active"], web["endpoints"], web["largest_share"]) == (None, None, None)
    assert (web["backends"][0]["active"], web["backends"][0]["share"]) == (None, None)
    (line,) = past.run(*given, "-o", "jsonl").stdout.splitlines()
    assert json.loads(line) == web


def test_an_agent_that_knows_no_past_is_named(past):
    past.fail("b", "top --compact --at=", "Error: No such option: --at", status=2)
    done = past.run("top", "--at", "10m", status=1)
    assert done.stderr == "b: an agent of another version: No such option: --at\n"
    assert done.stdout.startswith("100 flow records")


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "{}", "nonsense", '{"records":{"begin":"a","end":"b"},"services":[{}]}'),
        '{"records":{"begin":"a","end":"b","count":-1},"services":[]}',
        json.dumps({"records": {"begin": "a", "end": "b"}, "services": [service(active=-1)]}),
    ],
)
def test_what_an_odd_agent_tells_of_the_past_costs_no_others(past, content):
    past.say("b", "top --compact --at=", packed(content.encode()))
    done = past.run("top", "--at", "10m", status=1)
    assert done.stderr.startswith("b: an answer that this version cannot read")
    assert done.stdout.startswith("100 flow records")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--window", "5m"], "--window needs --at"),
        (["--at", "10m", "--watch"], "--watch does not work with --at"),
        (["--at", "noon"], "want a time, as in 03:10 or 2026-11-24T03:10, or how long ago"),
        (["--at", "10m", "--window", "25h"], "want from 1s to 24h"),
    ],
)
def test_options_that_make_no_sense_together_are_one_line(past, words, why):
    done = past.run("top", *words, status=2)
    assert why in done.output
    assert len(done.output.splitlines()) == 1
    assert not past.objects.executed

# SPDX-License-Identifier: Apache-2.0
import json
import re
import time
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

from ebpflb.cli import main
from ebpflb.kubectl import flows as command
from ebpflb.kubectl.streams import Streams
from tests.unit.kubectl.answers import flow, lines
from tests.unit.kubectl.api_server import pod


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    nodes.say("a", "flows", lines(flow(1), flow(4)))
    nodes.say("b", "flows", lines(flow(2), flow(3)))
    return nodes


def test_flows_of_all_nodes_come_in_the_order_of_time_with_their_node(two):
    header, *rows = two.run("flows", "-A").stdout.splitlines()
    assert re.split(r"\s{2,}", header)[:3] == ["TIME", "NODE", "VERDICT"]
    shown = [re.split(r"\s{2,}", row)[1:4:2] for row in rows]
    assert shown == [[node, f"default/curl:4000{n}"] for n, node in enumerate("abba", 1)]


def test_the_last_ones_are_the_last_of_all_nodes(two):
    found = two.run("flows", "-A", "--last", "2", "-o", "jsonl").stdout.splitlines()
    assert [(each["seq"], each["node"]) for each in map(json.loads, found)] == [(3, "b"), (4, "a")]
    assert two.run("flows", "-A", "--since", "1h", "-o", "json").stdout.count('"seq"') == 4


def test_the_agents_are_asked_with_the_same_filters(two):
    two.run("flows", "-n", "shop", "--service", "web", "--from", "10.1.0.9", "--verdict", "refused")
    for argv in two.objects.executed:
        assert argv[4:7] == ["ebpflb", "flows", "--output=jsonl"]
        assert set(argv[7:]) == {
            *("--from=10.1.0.9", "--verdict=refused", "--service=shop/web"),
            *("--namespace=shop", "--last=20"),
        }


def test_agents_understand_what_they_are_asked(two):
    given = ["--service", "web", "--from", "10.1.0.9", "--verdict", "refused", "--since", "5m"]
    two.run("flows", "-n", "shop", *given, "--last", "7")
    understood = main.commands["flows"].make_context("flows", two.objects.executed[0][6:]).params
    assert (understood["namespace"], understood["service"]) == ("shop", "shop/web")
    assert (understood["last"], understood["since"]) == (7, "5m")


def test_all_nodes_are_asked_for_an_id(two):
    two.run("flows", "-A", "--id", "18-1")
    assert [each[-2:] for each in two.objects.executed] == [["--id=18-1", "--last=20"]] * 2
    for node in "ab":
        two.say(node, "flows", "")
    assert two.run("flows", "--id", "18-1").stderr.startswith("no record of the last 24 hours")


def test_local_time_is_that_of_who_asks_and_agents_get_utc(two, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    two.run("flows", "--since", "2026-11-24T03:10", "--until", "2026-11-24T03:20Z")
    monkeypatch.undo()
    time.tzset()
    assert two.objects.executed[-1][-2:] == [
        "--since=2026-11-23T21:40:00.000000000Z",
        "--until=2026-11-24T03:20:00.000000000Z",
    ]


def test_without_a_namespace_the_one_of_the_kubeconfig_counts(two):
    two.run("flows", "--to", "web-0")
    assert {"--to=default/web-0", "--namespace=default"} <= set(two.objects.executed[0])
    two.run("flows", "-A", "--to", "web-0")
    assert not [word for word in two.objects.executed[-1] if word.startswith("--namespace")]


def test_a_node_that_fails_is_named_and_the_others_are_shown(two):
    two.fail("b", "flows", "Error: no agent answers at /run/ebpflb/agent.sock\n")
    two.add_without_agent("c")
    done = two.run("flows", "-A", status=1)
    assert done.stderr.splitlines() == [
        "b: no agent answers at /run/ebpflb/agent.sock",
        "c: no agent runs on this node",
    ]
    assert len(done.stdout.splitlines()) == 3


def test_a_node_without_an_agent_is_no_failure(two):
    two.add_without_agent("c")
    assert two.run("flows", "-A").stderr == "c: no agent runs on this node\n"


@pytest.mark.parametrize(
    "nonsense", ["<html>", "[]", '{"time": "yesterday"}', '{"lost": ', '{"lost": 1e999}']
)
def test_an_agent_that_answers_nonsense_is_named_with_one_line(two, nonsense):
    two.say("b", "flows", nonsense)
    done = two.run("flows", "-A", status=1)
    assert re.fullmatch(r"b: a flow that this version cannot read \(.*\)\n", done.stderr)
    assert len(done.stdout.splitlines()) == 3


def test_what_agents_say_does_not_reach_the_terminal_as_a_command(two):
    two.say("b", "flows", lines(flow(2, pod="x/\x1b[2J")))
    two.fail("a", "flows", "Error: \x1b[2J")
    done = two.run("flows", "-A", status=1)
    assert "\x1b" not in done.output
    assert "x/\\x1b[2J:40002" in done.stdout


@pytest.fixture
def follow(two, monkeypatch):
    """Follow until all streams have ended, which say nothing when they are begun again.

    The time passes once each node has said nothing for so long.
    """
    streams = partial(Streams, pause_seconds=0.05, look_seconds=0.1)
    monkeypatch.setattr(command, "Streams", streams)
    note = command._Reports.note
    ends: Counter[str] = Counter()

    def noted(reports, node, state):
        ends[node] = 0 if state.runs else ends[node] + 1
        note(reports, node, state)
        if all(ends[each] >= 3 for each in reports._nodes()):
            clock.monotonic = lambda: 1e9

    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setattr(command._Reports, "note", noted)
    for node in "ab":
        two.say(node, "flows --output=jsonl --follow --last=0", "")
    return lambda *given: two.run("flows", "--follow", "-o", "jsonl", *given, status=1)


def seqs(done):
    return sorted(json.loads(each)["seq"] for each in done.stdout.splitlines())


def test_new_flows_are_shown_as_they_come_and_a_node_that_ends_is_named_once(follow, two):
    done = follow("-A")
    assert seqs(done) == [1, 2, 3, 4]
    *told, last = done.stderr.splitlines()
    assert sorted(told) == [
        "a: not following for now: the agent has stopped",
        "b: not following for now: the agent has stopped",
    ]
    assert last == "Error: cannot follow any agent"
    assert len(two.objects.executed) > 4


def test_an_agent_in_a_new_pod_is_followed_with_what_was_missed(follow, two):
    two.objects.lists["/api/v1/pods"] = [pod("a"), pod("b")]
    two.answers["a-new"] = {}
    two.say("a-new", "flows --output=jsonl --follow --last=1048576", lines(flow(7)))
    two.say("a-new", "flows --output=jsonl --follow --last=0", "")

    def roll_out(name, argv):
        two.objects.lists["/api/v1/pods"] = [pod("a", "ebpflb-a-new"), pod("b")]
        return two.answer(name, argv)

    two.objects.command = roll_out
    done = follow("-A", "--last", "9")
    assert seqs(done) == [1, 2, 3, 4, 7]
    told = [line for line in done.stderr.splitlines() if line.startswith("a: ")]
    stopped = "a: not following for now: the agent has stopped"
    assert told == [stopped, "a: following again", stopped]
    assert sum("--last=9" in argv for argv in two.objects.executed) == 2


def test_a_node_that_comes_later_is_followed(follow, two):
    def scale_up(name, argv):
        if len(two.answers) == 2:
            two.add("c")
            two.say("c", "flows --output=jsonl --follow --last=1048576", lines(flow(9)))
            two.say("c", "flows --output=jsonl --follow --last=0", "")
        return two.answer(name, argv)

    two.objects.command = scale_up
    assert seqs(follow("-A")) == [1, 2, 3, 4, 9]


def test_if_no_node_can_be_followed_it_ends_at_once(two):
    for node in "ab":
        two.fail(node, "flows", "Error: no agent answers at /run/x")
    done = two.run("flows", "-A", "--follow", status=1)
    assert sorted(done.stderr.splitlines()) == [
        "Error: cannot follow any agent",
        "a: not following for now: no agent answers at /run/x",
        "b: not following for now: no agent answers at /run/x",
    ]


def test_following_one_namespace_has_the_agents_choose(two):
    for node in "ab":
        two.fail(node, "flows", "Error: no agent answers")
    two.run("flows", "--follow", status=1)
    assert "--namespace=default" in two.objects.executed[-1]


def test_formats_that_need_an_end_are_not_for_following(two):
    assert "use -o jsonl" in two.run("flows", "--follow", "-o", "yaml", status=2).stderr
    refused = two.run("flows", "--follow", "--until", "5m", status=2).stderr
    assert "--until does not work with --follow" in refused


def test_one_namespace_and_all_exclude_each_other(two):
    assert "cannot be used together" in two.run("flows", "-A", "-n", "x", status=2).stderr

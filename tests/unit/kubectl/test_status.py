# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.kubectl import program
from tests.unit.cli.invoked import check_narrow, interrupt_after
from tests.unit.kubectl.answers import status
from tests.unit.kubectl.api_server import pod


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    nodes.say("a", "status", status())
    nodes.say("b", "status", status("0.2.0", in_sync=False, dropped={"no_endpoint": 7, "x": 1}))
    nodes.say("c", "status", status())
    return nodes


def test_each_node_has_a_line(three):
    header, a, b, _ = three.run("status").stdout.splitlines()
    assert re.split(r"\s{2,}", header) == [
        *("NODE", "STATE", "VERSION", "LAST CHANGE", "DROPS", "FULLEST MAP")
    ]
    change, used = "2026-11-23 10:00:00", "25% used, lb_sockets"
    assert re.split(r"\s{2,}", a) == ["a", "in sync", "0.1.0", change, "0", used]
    assert re.split(r"\s{2,}", b) == [*("b", "not in sync", "0.2.0", change, "8 no endpoint", used)]


def test_a_node_that_is_not_served_fails_with_its_problems_reported_once(three):
    for node in "bc":
        three.say(node, "status", status(healthy=False, problems=["hooks are missing"]), 1)
    lines = three.run("status", status=1).stdout.splitlines()
    assert [re.split(r"\s{2,}", line)[1] for line in lines[2:4]] == ["not served"] * 2
    assert lines[-1] == "b, c: hooks are missing"


def test_a_node_whose_agent_is_down_is_served(three):
    shown = "agent down, serving the state of 05:48"
    down = {**status(), "healthy": False, "agent": None, "state": "agent down", "shown": shown}
    down["loaded"]["last_sync"] = "2026-11-24T05:48:11.5Z"
    three.say("b", "status", {**down, "problems": ["no agent answers at 127.0.0.1:10249"]}, 1)
    lines = three.run("status", status=1).stdout.splitlines()
    assert re.split(r"\s{2,}", lines[2])[:4] == ["b", shown, "-", "2026-11-24 05:48:11"]
    assert lines[-1] == "b: no agent answers at 127.0.0.1:10249"
    _, node, _ = json.loads(three.run("status", "-o", "json", status=1).stdout)
    assert (node["state"], node["shown"]) == ("agent down", shown)


def test_nodes_without_an_answer_and_without_an_agent_are_in_the_table(three):
    three.fail("b", "status", "Error: broken")
    three.add_without_agent("d")
    done = three.run("status", "-o", "json", status=1)
    assert {each["node"]: each["state"] for each in json.loads(done.stdout)} == {
        "a": "in sync",
        "b": "no answer",
        "c": "in sync",
        "d": "no agent",
    }
    assert done.stderr.splitlines() == ["b: broken", "d: no agent runs on this node"]


def test_a_node_where_nothing_is_loaded(three):
    bare = {**status(healthy=False, problems=["x"]), "agent": None, "loaded": None}
    three.say("a", "status", bare, 1)
    row = three.run("status", status=1).stdout.splitlines()[1]
    assert re.split(r"\s{2,}", row) == ["a", "not served", "-", "-", "-", "-"]


def test_the_wide_table_also_has_pods_and_images(three):
    row = three.run("status", "-o", "wide").stdout.splitlines()[1]
    assert re.split(r"\s{2,}", row)[6:] == ["3", "5", "ebpflb-a", "example.com/ebpflb:0.1.0"]


@pytest.mark.parametrize("nonsense", [[], {}, {"agent": 1}, "null", '{"healthy": true}'])
def test_nonsense_is_one_line(three, nonsense):
    three.say("b", "status", nonsense)
    done = three.run("status", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(.*\)\n", done.stderr)


@pytest.mark.parametrize("odd", [{}, {"metadata": {}}, {"metadata": {"name": "z"}, "spec": 1}])
def test_an_object_of_another_form_is_one_line(three, odd):
    three.objects.lists["/api/v1/pods"].append(odd)
    told = three.run("status", status=1).stderr
    assert re.fullmatch(
        r"Error: http://\S+: an object that this version cannot read \(.+\)\n", told
    )


def test_a_time_that_is_none_is_shown_as_it_is(three):
    odd = status()
    odd["agent"]["last_sync"] = "5"
    three.say("b", "status", odd)
    lines = three.run("status").stdout.splitlines()
    assert [line.split()[4] for line in lines if line.startswith("b ")] == ["5"]


def test_it_is_asked_again_until_an_interrupt_where_the_agents_are_then(three, monkeypatch):
    three.fail("b", "status", "Error: broken")

    def roll_out():
        three.objects.lists["/api/v1/pods"] = [pod("a", "ebpflb-a-new")]
        three.answers["a-new"] = {}
        three.say("a-new", "status", status("0.3.0"))

    interrupt_after(2, monkeypatch, between=roll_out)
    done = three.run("status", "-w", "-o", "jsonl", status=INTERRUPTED)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    states = [(each["node"], each["state"], each["version"]) for each in found]
    assert states[:3] == [
        ("a", "in sync", "0.1.0"),
        ("b", "no answer", ""),
        ("c", "in sync", "0.1.0"),
    ]
    assert states[3:] == [("a", "in sync", "0.3.0"), ("b", "no agent", ""), ("c", "no agent", "")]
    assert done.stderr == "b: broken\nb, c: no agent runs on this node\n"


def test_on_a_narrow_terminal_all_of_it_is_shown(three, screen):
    problem = "not attached: " + "no such device " * 5
    three.say("b", "status", status(healthy=False, problems=[problem]), 1)
    check_narrow(screen, program, "status", "--kubeconfig", str(three.kubeconfig))


def test_only_the_given_nodes_are_asked(three):
    three.fail("a", "status", "broken")
    done = three.run("status", "--node", "b", "--node", "c")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NODE", "b", "c"]
    assert done.stderr == ""


def test_a_given_node_that_is_not_there_is_one_line(three):
    done = three.run("status", "--node", "b", "--node", "z", status=1)
    assert done.stderr == "Error: --node z: not found: `kubectl get nodes` lists them\n"

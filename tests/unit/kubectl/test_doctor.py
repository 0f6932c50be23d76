# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from tests.unit.kubectl.answers import finding


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    for number, node in enumerate("abc"):
        ok = finding("ok", f"0.1.0 runs (pid {number})")
        nodes.say(node, "doctor", {"healthy": True, "findings": [ok]})
    return nodes


def ill(nodes, node, *findings):
    nodes.say(node, "doctor", {"healthy": False, "findings": list(findings)}, 1)


def test_nothing_is_reported_about_nodes_that_are_well(three):
    assert three.run("doctor", "-A").stdout == "\n0 errors, 0 warnings on 3 nodes\n"
    line = three.run("doctor", "-o", "wide").stdout.splitlines()[0]
    assert line == "ok       agent       all 3 nodes: 0.1.0 runs (pid 0)"


def test_a_problem_of_several_nodes_is_reported_once(three):
    for node, device, count in (("a", "veth1", 4), ("c", "veth2", 5)):
        ill(three, node, finding("warning", f"{count} rules drop", "netfilter", device, "see them"))
    ill(three, "b", finding("error", "is broken"))
    assert three.run("doctor", status=1).stdout.splitlines() == [
        "error    agent       b: is broken",
        "warning  netfilter   a, c: veth1: 4 rules drop -> see them",
        "",
        "1 error, 1 warning on 3 nodes",
    ]


def test_programs_get_all_nodes_of_a_problem(three):
    ill(three, "b", finding("warning", "w"))
    ill(three, "c", finding("warning", "w"))
    worst, *_ = json.loads(three.run("doctor", "-o", "json", status=1).stdout)
    assert worst["nodes"] == ["b", "c"]


def test_a_note_is_no_failure(three):
    ill(three, "a", finding("note", "kube-proxy runs"))
    assert three.run("doctor").stdout.startswith("note     agent       a: kube-proxy runs\n")


def test_an_agent_of_another_version_that_cannot_answer_is_named(three):
    three.fail("b", "doctor", "Error: No such command 'doctor'.", 2)
    done = three.run("doctor", status=1)
    assert done.stderr == "b: an agent of another version: No such command 'doctor'.\n"


def test_nothing_is_said_of_nodes_that_do_not_answer(three):
    for node in "abc":
        three.fail(node, "doctor", "Error: out of memory")
    assert three.run("doctor", status=1).stdout == "no node has answered\n"

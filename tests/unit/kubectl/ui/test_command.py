# SPDX-License-Identifier: Apache-2.0
"""The command, with agents behind an API server."""

import json
import socket
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.kubectl.ui import command
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.server import PageServer
from tests.ui.flows import flow
from tests.unit.kubectl.answers import backend, compact_top, service
from tests.unit.kubectl.api_server import pod


@pytest.fixture
def visit(monkeypatch):
    """Have `visitor` look at the page that the command serves; then Ctrl-C."""

    def prepare(visitor):
        def visited(server: PageServer) -> None:
            visitor(server.url)
            raise KeyboardInterrupt

        monkeypatch.setattr(PageServer, "wait", visited)

    return prepare


def ask(url, what):
    with urlopen(f"{url}api/{what}", timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def seen(url, connections, silent=0):
    """The view with so many connections, and as many nodes that do not answer."""
    deadline = time.monotonic() + 60
    while (view := ask(url, "view"))["seen"] < connections or sum(
        bool(each["why"]) for each in view["nodes"]
    ) < silent:
        assert time.monotonic() < deadline, view
        time.sleep(0.02)
    return view


DOWN = "agent down, serving the state of 05:48"


def test_flows_of_all_nodes_and_explain(nodes, visit):
    nodes.add("a", "b")
    nodes.add_without_agent("c")
    nodes.say("a", "flows --output=jsonl --follow", f"{json.dumps(flow())}\n")
    nodes.fail("b", "flows --output=jsonl --follow", "Error: no agent answers at /run/x")
    nodes.say("b", "status", {"state": "agent down", "shown": DOWN}, 1)
    nodes.say("a", "COLUMNS=52 ebpflb explain", "fails: refused at the socket\n", status=1)
    found = {}

    def visitor(url):
        found["view"] = seen(url, 1, silent=3)
        found["explain"] = ask(url, "explain?flow=1")

    visit(visitor)
    done = nodes.run("ui", status=INTERRUPTED)
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stdout.count("\n") == 1
    assert "Ctrl-C" in done.stderr
    whys = {each["node"]: each["why"] for each in found["view"]["nodes"]}
    assert whys["b"] == f"{DOWN}; no agent answers at /run/x"
    assert whys["c"] == "no agent runs on this node"
    assert found["explain"]["text"] == "fails: refused at the socket\n"


def test_the_past_and_what_is_open_now(nodes, visit):
    nodes.add("a", "b")
    nodes.add_without_agent("c")
    then = datetime.now(UTC) - timedelta(hours=1)
    line = json.dumps(flow(time=f"{then - timedelta(seconds=90):%Y-%m-%dT%H:%M:%S}.000000000Z"))
    for node in "ab":
        nodes.say(node, "flows --output=jsonl --follow", "")
        nodes.say(node, "top", compact_top(service(backend("10.1.0.1"), active=4)))
    nodes.say("a", "flows --output=jsonl --since", f"{line}\n{line}\n")
    nodes.fail("b", "flows --output=jsonl --since", "Error: No such option: --until", 2)
    found = {}

    def visitor(url):
        while (now := ask(url, "view"))["active"] is None:
            time.sleep(0.02)
        found["now"] = now
        found["past"] = ask(url, f"view?window=300&until={then:%Y-%m-%dT%H:%M:%SZ}")

    visit(visitor)
    nodes.run("ui", status=INTERRUPTED)
    assert (found["now"]["active"], found["past"]["active"]) == (8, None)
    assert found["past"]["seen"] == 2
    assert [(each["node"], each["state"], each["why"]) for each in found["past"]["nodes"]] == [
        ("a", "answered", ""),
        ("b", "silent", "an agent of another version: No such option: --until"),
    ]
    asked = [argv for argv in nodes.objects.executed if "--last=20000" in argv]
    assert len(asked) == 2


def test_an_agent_in_a_new_pod_is_followed(nodes, visit, monkeypatch):
    monkeypatch.setattr(command, "Following", partial(Following, pause_seconds=0.05))
    nodes.add("a")
    nodes.answers["a-new"] = {}
    nodes.say("a-new", "flows", f"{json.dumps(flow())}\n")
    nodes.fail("a", "flows", "Error: the agent has stopped")

    def roll_out(name, argv):
        nodes.objects.lists["/api/v1/pods"] = [pod("a", "ebpflb-a-new")]
        return nodes.answer(name, argv)

    nodes.objects.command = roll_out
    visit(lambda url: seen(url, 1))
    nodes.run("ui", status=INTERRUPTED)


def test_explain_on_a_node_that_does_not_answer(nodes, visit):
    nodes.add("a")
    nodes.say("a", "flows --output=jsonl --follow", f"{json.dumps(flow())}\n")
    told = []

    def visitor(url):
        seen(url, 1)
        path = "/api/v1/namespaces/kube-system/pods/ebpflb-a/exec"
        nodes.objects.forbidden[path] = "no"
        with pytest.raises(HTTPError) as refusal:
            ask(url, "explain?flow=1")
        told.append(json.load(refusal.value)["error"])

    visit(visitor)
    nodes.run("ui", status=INTERRUPTED)
    assert told[0].startswith("a: ")


def test_a_port_that_is_taken_is_one_line(nodes):
    nodes.add("a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = nodes.run("ui", "--port", str(port), status=1)
    assert done.output == f"Error: cannot listen at 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("words", [[], ["-A"], ["-n", "shop"]])
def test_one_namespace_is_followed_or_all(nodes, visit, words):
    nodes.add("a")
    nodes.say("a", "flows", f"{json.dumps(flow())}\n")
    found = {}
    visit(lambda url: found.update(seen(url, 1)))
    nodes.run("ui", *words, status=INTERRUPTED)
    (asked,) = (argv[4:] for argv in nodes.objects.executed if "--follow" in argv)
    given = {"--namespace=shop"} if "shop" in words else set()
    assert set(asked) == {"ebpflb", "flows", "--output=jsonl", "--follow", *given}
    assert found["cluster"].startswith("shop, main (http" if given else "main (http")


def test_one_namespace_and_all_exclude_each_other(nodes):
    assert "cannot be used together" in nodes.run("ui", "-A", "-n", "x", status=2).stderr

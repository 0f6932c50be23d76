# SPDX-License-Identifier: Apache-2.0
"""The page over the relay: what it shows, and what its explanations say."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.kubectl.ui.server import PageServer
from ebpflb.model.flow import FollowedNode
from ebpflb.words.observe import EXPLANATIONS, FLOWS, RATES
from tests.ui.flows import flow
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl.answers import backend, service
from tests.unit.kubectl.api_server import DAEMON_SETS
from tests.unit.kubectl.relay.fake_relay import FORBIDDEN

SHOP = "namespaces/shop/"
ANSWER = answered(frontend=FRONTEND, backends=[explained_backend()])
A, B = FollowedNode("a", True), FollowedNode("b", False, "is down")


@pytest.fixture(autouse=True)
def rates(relay):
    """What the page asks for beside everything else."""
    for place in ("", SHOP):
        relay.say(RATES, [service(backend("10.1.0.1"), name="web", namespace="shop")], place)


def asked_first(relay):
    """Without the rates, which are asked for beside."""
    return [each for each in relay.asked() if not each[0].endswith(RATES)]


@pytest.fixture
def visited(three, monkeypatch):
    """What a visitor of the page finds, who comes after this has been told; then Ctrl-C."""

    def visit(visitor, *words):
        found = []

        def wait(server: PageServer) -> None:
            found.append(visitor(server.url))
            raise KeyboardInterrupt

        monkeypatch.setattr(PageServer, "wait", wait)
        done = three.run("ui", *words, status=INTERRUPTED)
        return found[0], done

    return visit


def ask(url, what):
    with urlopen(f"{url}api/{what}", timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def seen(url, connections=1, nodes=2):
    deadline = time.monotonic() + 60
    while (view := ask(url, "view"))["seen"] < connections or len(view["nodes"]) < nodes:
        assert time.monotonic() < deadline, view
        time.sleep(0.02)
    return view


def explained(url):
    seen(url, nodes=0)
    return ask(url, "explain?flow=1")


def groups(*nodes, answer=ANSWER):
    asked = {"status": 0, "outcome": "works", "source": "x", "target": "y"}
    return {**asked, "answer": answer, "nodes": list(nodes)}


@pytest.mark.parametrize(
    ("words", "place", "cluster"),
    [
        ([], "", "main (http"),
        (["-A", "--via", "relay"], "", "main (http"),
        (["-n", "shop"], SHOP, "shop, main (http"),
    ],
)
def test_the_page_shows_what_the_relay_tells(three, relay, visited, words, place, cluster):
    relay.watched(place).tell(A, B, {**flow(), "node": "a"})
    view, done = visited(seen, *words)
    assert [(each["node"], each["state"], each["why"]) for each in view["nodes"]] == [
        ("a", "following", ""),
        ("b", "silent", "is down"),
    ]
    assert view["cluster"].startswith(cluster)
    assert asked_first(relay) == [(f"{place}flows", {"watch": "true"})]
    assert not three.objects.executed
    assert "relay" not in done.stderr


def test_only_some_nodes_are_followed(three, relay, visited):
    relay.watched("").tell(A, {**flow(), "node": "a"})
    visited(lambda url: seen(url, nodes=1), "--node", "a", "--node", "b")
    assert asked_first(relay) == [("flows", {"node": "a,b", "watch": "true"})]


def test_who_may_see_one_namespace_needs_no_other_right(three, relay, visited):
    for path in ("/api/v1/pods", "/api/v1/nodes", DAEMON_SETS):
        three.objects.refused[path] = 403, "forbidden"
    relay.refuse(FLOWS, 403, FORBIDDEN, place="")
    relay.watched(SHOP).tell(A, {**flow(), "node": "a"})
    relay.say(EXPLANATIONS, [groups("a")], SHOP)
    found, _ = visited(explained, "-n", "shop")
    assert found["text"].startswith("On a:\n\nworks")
    done = three.run("ui", status=1)
    assert done.stderr.startswith(f"not through the relay (RBAC forbids it: {FORBIDDEN}")
    assert "Error: cannot look for agents" in done.stderr


FROM_A_POD = "shop/cart-7d4b9c6f5-x2x4z"
FROM_OUTSIDE = {"address": "198.51.100.7", "port": 5}
TO = "10.96.0.10:80/tcp"


@pytest.mark.parametrize(
    ("words", "client", "asks"),
    [
        (["-n", "shop"], FROM_A_POD, (FROM_A_POD, "")),
        ([], FROM_A_POD, (FROM_A_POD, "")),
        (["-n", "shop", "--node", "a", "--node", "b"], FROM_OUTSIDE, ("198.51.100.7", "a")),
        (["-n", "shop"], None, ("host", "a")),
    ],
)
def test_explanations_are_those_of_the_plugin(three, relay, visited, words, client, asks):
    source, node = asks
    place = SHOP if "shop" in words else ""
    relay.watched(place).tell({**flow(client=client), "node": "a"})
    for each in {place, SHOP}:
        relay.say(EXPLANATIONS, [groups("a")], each)
    found, _ = visited(explained, *words)
    option = f"--node {node} " if node else ""
    command = f"kubectl ebpflb explain --context main -n shop {option}{source} {TO}"
    assert (found["command"], found["copied"]) == (command, command)
    assert found["node"] == "a"
    assert max(map(len, found["text"].splitlines())) <= 52
    parameters = {"from": source, "to": TO, **({"node": node} if node else {})}
    assert asked_first(relay)[1] == (f"{place}explanations", parameters)
    assert not three.objects.executed
    assert "COLUMNS" not in os.environ
    again = three.run(*found["command"].split()[2:])
    assert again.stdout.split() == found["text"].split()


def test_the_past_and_the_open_connections_are_those_of_the_relay(three, relay, visited):
    relay.failures = {"is down": ["b"]}
    relay.watched(SHOP).tell(A, b"no flow\n")
    until = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    made = flow(time=f"{until - timedelta(minutes=3):%Y-%m-%dT%H:%M:%S}.000000000Z")
    relay.say(FLOWS, [{**made, "node": "a"}] * 3, SHOP)
    relay.say(RATES, [service(backend("10.1.0.1"), name="web", namespace="shop")], SHOP)

    def visitor(url):
        # A line that cannot be read is one of the relay, which is no node.
        while (now := ask(url, "view"))["active"] is None or len(now["nodes"]) < 2:
            time.sleep(0.02)
        return now, ask(url, f"view?window=300&until={until:%Y-%m-%dT%H:%M:%SZ}")

    (now, past), _ = visited(visitor, "-n", "shop")
    assert now["active"] == 1
    assert now["active_why"] == "without b, no answer"
    assert past["total"]["connections"] == 3
    assert [(each["node"], each["flows"], each["why"]) for each in past["nodes"]] == [
        ("a", 3, ""),
        ("b", 0, "is down"),
    ]
    (asked,) = [parameters for _, parameters in asked_first(relay) if "since" in parameters]
    assert int(asked["since"][:-1]) - int(asked["until"][:-1]) == 360
    assert not three.objects.executed


def test_answers_that_differ_and_failures_are_told(three, relay, visited):
    relay.failures = {"out of memory": ["c"]}
    relay.watched("").tell({**flow(client=FROM_OUTSIDE), "node": "a"})
    refused = answered("refused", frontend=FRONTEND, why="no endpoint")
    relay.say(EXPLANATIONS, [groups("a"), groups("b", answer=refused)], "")
    found, done = visited(explained)
    assert found["node"] == "a, b"
    assert found["text"].startswith("On a, b (2 nodes), whose answers differ:")
    assert found["text"].endswith("\n\nc: out of memory")
    assert "out of memory" not in done.stderr


def test_an_explanation_that_fails_is_an_error_of_the_page(three, relay, visited):
    relay.watched("").tell({**flow(), "node": "a"})
    relay.refuse(EXPLANATIONS, 422, "pod is not scheduled yet", place="")

    def visitor(url):
        with pytest.raises(HTTPError) as refusal:
            explained(url)
        return json.load(refusal.value)["error"]

    assert visited(visitor)[0] == "pod is not scheduled yet"


def test_if_it_explains_nothing_the_nodes_are_asked(three, relay, visited):
    relay.watched("").tell({**flow(client={"address": "10.1.0.4"}), "node": "a"})
    relay.refuse(EXPLANATIONS, 403, FORBIDDEN, place="")
    found, done = visited(explained)
    assert found["text"].startswith("On a:\n\n")
    assert "not through the relay" in found["text"]
    assert "not through the relay" not in done.stderr


def test_if_it_does_not_answer_the_nodes_are_followed(three, relay, visited):
    relay.refuse(FLOWS, 503, "wait", place="")
    three.say("a", "flows", f"{json.dumps(flow())}\n")
    view, done = visited(lambda url: seen(url, nodes=3))
    why = "no pod of the relay is ready: wait"
    assert done.stderr.startswith(f"not through the relay ({why}): asking the nodes by pods/exec\n")
    assert [each["node"] for each in view["nodes"]] == ["a", "b", "c"]
    assert three.run("ui", "--via", "relay", status=1).output == f"Error: {why}\n"


def test_by_exec_it_is_not_asked(three, relay, visited):
    relay.watched("")
    visited(lambda url: seen(url, 0, nodes=3), "--via", "exec")
    assert not relay.asked()

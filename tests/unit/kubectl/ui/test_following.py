# SPDX-License-Identifier: Apache-2.0
import json
import queue
import threading
import time
from collections.abc import Callable

import pytest

from ebpflb.errors import ClusterError, QueryError
from ebpflb.kubectl.relay_streams import RelayStreams
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.model.flow import FollowedNode, watch_line
from tests.ui.flows import FakeAgents, flow


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def agents():
    made = FakeAgents("node1", "node2")
    yield made
    made.end()


@pytest.fixture
def traffic():
    return EdgeTraffic()


@pytest.fixture
def begin(traffic, agents):
    """Follow with these periods."""
    begun = []

    def start(find=agents.find, pause=0.01, look=0.01):
        made = Following(traffic, find, pause_seconds=pause, look_seconds=look)
        begun.append(made)
        made.start()
        return made

    yield start
    for each in begun:
        each.stop()


@pytest.fixture
def following(begin):
    return begin()


def states(following):
    return {each["node"]: each["state"] for each in following.nodes()}


def test_flows_of_all_nodes_are_counted(traffic, agents, following):
    agents.send("node1", flow(), "", flow())
    agents.send("node2", flow())
    wait(lambda: sum(each["flows"] for each in following.nodes()) == 3)
    assert states(following) == {"node1": "following", "node2": "following"}
    assert {edge.node for edge in traffic.read(60).tallies} == {"node1", "node2"}


def test_a_node_that_does_not_answer_is_named_and_tried_again(agents, following):
    assert states(following) == {"node1": "connecting", "node2": "connecting"}
    agents.send("node1", "")
    agents.fail("node2", "exec is\nforbidden")
    wait(lambda: states(following) == {"node1": "following", "node2": "silent"})
    assert following.nodes()[1]["why"] == "exec is forbidden"
    agents.send("node2", flow())
    wait(lambda: states(following)["node2"] == "following")
    assert following.nodes()[1]["why"] == ""


def test_an_agent_that_stops_is_no_longer_followed(begin, agents):
    following = begin(pause=60)
    agents.send("node1", "")
    agents.stop("node1")
    wait(lambda: states(following)["node1"] == "silent")
    assert following.nodes()[0]["why"] == "the agent has stopped"


def test_an_error_nobody_expects_ends_no_other_node(agents, following):
    agents.fail("node1", "oops", ZeroDivisionError)
    agents.send("node2", flow())
    wait(lambda: states(following) == {"node1": "silent", "node2": "following"})
    assert following.nodes()[0]["why"] == "unexpected ZeroDivisionError: oops"


def test_nodes_come_and_go(agents, following):
    agents.add("node3")
    wait(lambda: "node3" in states(following))
    agents.send("node3", flow())
    wait(lambda: states(following)["node3"] == "following")
    agents.remove("node3")
    wait(lambda: "node3" not in states(following))


def test_what_a_node_says_that_is_gone_is_not_counted(begin):
    goes_on = threading.Event()

    def late():
        yield ""
        goes_on.wait(60)
        yield json.dumps(flow())

    looks = iter([{"node1": late}])
    following = begin(lambda: next(looks, {"node2": iter}))
    wait(lambda: list(states(following)) == ["node2"])
    goes_on.set()
    wait(lambda: states(following)["node2"] == "silent")
    assert list(states(following)) == ["node2"]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "nothing", '{"event":"end"', '{"event":1}', "[" * 100_000, "\x00"),
        *('{"lost": -5}', '{"lost": 1e999}', '{"lost": NaN}', f'{{"lost": {"9" * 4300}}}'),
        pytest.param(json.dumps(flow(event="begun")), id="an unknown event"),
        pytest.param(json.dumps(flow(verdict="lost")), id="an unknown verdict"),
    ],
)
def test_lines_that_are_no_flows_are_counted(agents, following, line):
    agents.send("node1", line, flow())
    wait(lambda: following.nodes()[0]["flows"] == 1)
    assert following.nodes()[0]["unreadable"] == 1


def test_lost_flows_are_counted(agents, following):
    agents.send("node1", {"lost": 7}, {"lost": 2}, flow())
    wait(lambda: following.nodes()[0]["flows"] == 1)
    assert following.nodes()[0]["lost"] == 9


def test_trouble_with_the_api_server_leaves_the_nodes_as_they_were(begin, agents):
    broken = False

    def find():
        if broken:
            raise QueryError("cannot reach\nthe API server")
        return agents.find()

    following = begin(find)
    broken = True
    wait(lambda: following.trouble == "cannot reach the API server")
    agents.send("node1", flow())
    wait(lambda: following.nodes()[0]["flows"] == 1)
    broken = False
    wait(lambda: not following.trouble)


def test_nothing_is_begun_again_after_the_end(agents, following):
    following.stop()
    agents.send("node1", flow())
    agents.stop("node2")
    wait(lambda: "ebpflb-follow" not in [each.name for each in threading.enumerate()])


def test_without_a_cluster_it_does_not_start(begin):
    def find():
        raise QueryError("no agents found")

    with pytest.raises(QueryError, match="no agents found"):
        begin(find)


def told(found):
    """A line of the relay's watch."""
    if isinstance(found, FollowedNode):
        return watch_line(found).decode().removesuffix("\n")
    return json.dumps({"type": "ADDED", "object": found})


class FakeWatching:
    """Streams what is told; an exception breaks the stream off, or is what comes of the next."""

    def __init__(self):
        self._queue: queue.Queue[str | Exception] = queue.Queue()

    def tell(self, *found):
        for each in found:
            self._queue.put(each if isinstance(each, str | Exception) else told(each))

    def follow(self):
        while not isinstance(found := self._queue.get(), Exception):
            yield found
        raise found


@pytest.fixture
def watching():
    made = FakeWatching()
    yield made
    made.tell(ClusterError("is gone"))


@pytest.fixture
def by_relay(traffic, watching):
    streams = RelayStreams(watching.follow, pause_seconds=0.01, look_seconds=0.01)
    made = Following(traffic, streams)
    made.start()
    yield made
    made.stop()


A, B = FollowedNode("node1", True), FollowedNode("node2", False, "is\ndown")


def test_nodes_are_those_of_which_the_relay_tells(traffic, watching, by_relay):
    assert by_relay.nodes() == []
    watching.tell(A, B, {**flow(), "node": "node1"}, {"lost": 3, "node": "node2"}, "")
    wait(lambda: len(by_relay.nodes()) == 2 and by_relay.nodes()[1]["lost"] == 3)
    assert states(by_relay) == {"node1": "following", "node2": "silent"}
    assert by_relay.nodes()[1]["why"] == "is down"
    assert {edge.node for edge in traffic.read(60).tallies} == {"node1"}
    assert by_relay.nodes()[0]["flows"] == 1


def test_without_the_relay_no_node_is_followed_until_it_tells_again(watching, by_relay):
    watching.tell(A, B)
    wait(lambda: states(by_relay) == {"node1": "following", "node2": "silent"})
    watching.tell(ClusterError("is\ngone"))
    wait(lambda: by_relay.trouble)
    assert by_relay.trouble == "the relay: is gone"
    wait(lambda: set(states(by_relay).values()) == {"silent"})
    assert {each["why"] for each in by_relay.nodes()} == {"the relay: is gone"}
    watching.tell("")
    wait(lambda: not by_relay.trouble)
    wait(lambda: states(by_relay) == {"node1": "connecting", "node2": "connecting"})
    watching.tell(A, {**flow(), "node": "node1"})
    wait(lambda: states(by_relay) == {"node1": "following", "node2": "connecting"})


@pytest.mark.parametrize(
    "line", ["<html>", "[]", '{"type": "GONE", "object": {}}', "[" * 100_000, json.dumps(flow())]
)
def test_odd_lines_of_the_relay_are_counted(watching, by_relay, line):
    watching.tell(A, line, {**flow(), "node": "node1"}, {"lost": 7})
    wait(lambda: [each for each in by_relay.nodes() if each["lost"] == 7])
    node, relay = sorted(by_relay.nodes(), key=lambda each: each["lost"])
    assert (relay["node"], relay["unreadable"], relay["state"]) == ("the relay", 1, "following")
    assert (node["node"], node["flows"], node["unreadable"]) == ("node1", 1, 0)
    watching.tell(ClusterError("is gone"))
    wait(lambda: states(by_relay)["the relay"] == "silent")
    watching.tell("")
    wait(lambda: states(by_relay)["the relay"] == "following")


def test_without_the_relay_it_does_not_start(traffic):
    def refuse():
        raise ClusterError("no relay")

    with pytest.raises(ClusterError, match="no relay"):
        Following(traffic, RelayStreams(refuse)).start()

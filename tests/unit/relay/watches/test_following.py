# SPDX-License-Identifier: Apache-2.0
"""One stream from each agent, for any number of watchers."""

import threading
from contextlib import closing

import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl import streams
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.model.flow import Flow, FollowedNode, LostFlows
from ebpflb.relay import following
from ebpflb.relay.following import FlowHub
from tests.unit.kubectl.answers import flow, lines

AGENTS = [
    RemoteAgent(node, "kube-system", f"ebpflb-{node}", True, "", "127.0.0.1") for node in "ab"
]
RUNS = [FollowedNode(node, runs=True) for node in "ab"]


class Stream:
    """What an agent sends, and then nothing until the stream is closed."""

    def __init__(self, *pieces, status=200, ends=False):
        self.given, self.status, self.ends = pieces, status, ends
        self.asked = ""
        self.closed = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed.set()

    def ask(self, target, deadline):
        assert deadline is None
        self.asked = target
        return self.status

    def pieces(self, deadline):
        assert deadline is None
        yield from self.given
        while not self.ends:
            yield b""
            if self.closed.wait(0.01):
                return


class Agents:
    """streams: those of each node, which are opened one after the other."""

    def __init__(self, **given):
        self.left = {node: list(each) for node, each in given.items()}
        self.opened = []

    def open(self, agent):
        left = self.left[agent.node]
        if not left:
            raise OSError(111, "Connection refused")
        found = left.pop(0)
        if isinstance(found, OSError):
            raise found
        self.opened.append((agent.node, found))
        return found


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Streams are begun again at once, and watchers look often."""
    monkeypatch.setattr(streams, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(streams, "_STOP_SECONDS", 0.01)
    made = streams.Streams
    monkeypatch.setattr(following, "Streams", lambda find: made(find, 0.01, 60.0))
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0.01)


def hub_of(agents, found=AGENTS):
    return FlowHub(lambda: list(found), agents.open)


def heard(watch, most):
    """So many of what the watcher hears."""
    found = []
    for batch in watch:
        found += batch
        if len(found) >= most:
            return found
    return found


def line(number):
    return lines(flow(number)).encode()


def test_a_watcher_hears_the_flows_of_all_nodes():
    agents = Agents(a=[Stream(line(1)[:20], line(1)[20:] + line(2))], b=[Stream(line(3))])
    with closing(hub_of(agents).watch()) as watch:
        found = heard(watch, 5)
    assert sorted(each.node for each in found if isinstance(each, FollowedNode)) == ["a", "b"]
    flows = [(each.node, each.seq) for each in found if isinstance(each, Flow)]
    assert sorted(flows) == [("a", 1), ("a", 2), ("b", 3)]
    assert {each.asked for _, each in agents.opened} == {"/v1/flows?follow=1&limit=0"}


def test_watchers_share_the_streams_which_end_with_the_last_one():
    agents = Agents(a=[Stream(), Stream()], b=[Stream(), Stream()])
    hub = hub_of(agents)
    with closing(hub.watch()) as first:
        assert sorted(heard(first, 2), key=lambda each: each.node) == RUNS
        with closing(hub.watch()) as second:
            assert sorted(next(second), key=lambda each: each.node) == RUNS
        assert not any(each.closed.is_set() for _, each in agents.opened)
        assert len(agents.opened) == 2
    for _, each in agents.opened:
        assert each.closed.wait(60)
    with closing(hub.watch()) as third:
        heard(third, 2)
    assert len(agents.opened) == 4


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (OSError(113, "No route to host"), "cannot be followed: No route to host"),
        (Stream(status=403), "the agent answers 403"),
        (Stream(b"x" * 70_000), "sends a line without an end"),
    ],
)
def test_a_node_that_cannot_be_followed_is_told_once_with_why(broken, why):
    agents = Agents(a=[broken, broken, Stream()], b=[Stream()])
    with closing(hub_of(agents).watch()) as watch:
        found = heard(watch, 3)
        while FollowedNode("a", runs=True) not in found[1:]:
            found += next(watch)
    told = [each for each in found if each.node == "a" and not each.runs]
    assert [each.why for each in told] == [why] * len(told)
    assert FollowedNode("a", runs=False, why=why) in found


def test_a_node_without_an_agent_is_told():
    nobody = RemoteAgent("c", "", "", False, "")
    with closing(hub_of(Agents(), [nobody]).watch()) as watch:
        (found,) = heard(watch, 1)
    assert found == FollowedNode("c", runs=False, why="no agent runs on this node")


def test_a_line_that_is_no_flow_counts_as_lost():
    agents = Agents(a=[Stream(b"{}\n" + line(1))], b=[Stream()])
    with closing(hub_of(agents).watch()) as watch:
        found = heard(watch, 4)
    assert LostFlows(lost=1, node="a") in found


def test_who_reads_too_slowly_is_told_how_many_are_missing(monkeypatch):
    monkeypatch.setattr(following, "_KEPT", 4)
    agents = Agents(a=[Stream()], b=[Stream()])
    hub = hub_of(agents)
    with closing(hub.watch()) as watch:
        heard(watch, 2)
        hub._history.add([LostFlows(lost=0, node=str(number)) for number in range(10)])
        lost, *rest = heard(watch, 5)
    assert lost == LostFlows(lost=6)
    assert [each.node for each in rest] == ["6", "7", "8", "9"]


def test_without_any_agent_the_watcher_is_told_at_once():
    def none():
        raise ClusterError("no agents found")

    with pytest.raises(ClusterError, match="no agents found"):
        next(FlowHub(none, Agents().open).watch())

# SPDX-License-Identifier: Apache-2.0
"""What a watcher of flows gets, of what happens in a cluster with others."""

from http import HTTPStatus
from types import SimpleNamespace

import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentQuestion
from ebpflb.model.flow import Flow, FollowedNode, LostFlows, read_flow, read_watch_line
from ebpflb.relay import watching
from ebpflb.relay.requests import ApiError, list_request
from ebpflb.relay.watching import FlowWatches
from ebpflb.words.observe import PATH
from tests.unit.relay.cluster import (
    ADMIN,
    HIDDEN,
    JANE,
    NODES,
    OUTSIDE,
    SHOP_IP,
    TELLER,
    TELLER_IP,
    VAULT,
)
from tests.unit.relay.talkative import talk


def request_of(what):
    found = list_request(f"{PATH}/{what}")
    assert found
    assert found.is_watch
    return found


def happened():
    """The flows of a cluster in which everybody talks to everybody."""
    for node in NODES:
        said = talk(RemoteAgent(node, "", "", True, ""), AgentQuestion("flows"))
        for line in said.stdout.splitlines():
            flow = read_flow(line)
            flow.node = node
            yield flow


def watched(relayed, what, viewer=JANE, batches=()):
    """All that the watcher gets."""
    batches = batches or ([*happened()],)
    watches = FlowWatches(relayed.answers, lambda: iter(batches))
    return list(watches.lines(request_of(what), viewer))


def flows_of(pieces):
    lines = map(read_watch_line, filter(None, b"".join(pieces).splitlines()))
    return [read_flow(each) for each in lines if isinstance(each, str)]


@pytest.mark.parametrize(
    "query",
    ["", f"&from={OUTSIDE}", "&from=curl", f"&to={SHOP_IP}", "&service=web", "&node=a"],
)
def test_within_a_namespace_nothing_of_others_is_heard(relayed, query):
    pieces = watched(relayed, f"namespaces/shop/flows?watch=true{query}")
    found = flows_of(pieces)
    assert found
    assert {each.service.namespace for each in found} == {"shop"}
    text = b"".join(pieces).decode()
    assert not any(each in text for each in HIDDEN)


def test_for_all_namespaces_everything_is_heard(relayed):
    assert flows_of(watched(relayed, "flows?watch=true", ADMIN)) == list(happened())


@pytest.mark.parametrize(
    ("query", "is_wanted"),
    [
        ("service=bank/" + VAULT, lambda flow: flow.service and flow.service.name == VAULT),
        ("verdict=failed,dropped", lambda flow: flow.verdict in ("failed", "dropped")),
        ("event=end", lambda flow: flow.event == "end"),
        ("node=b", lambda flow: flow.node == "b"),
        (f"from=bank/{TELLER}", lambda flow: flow.client.pod == f"bank/{TELLER}"),
    ],
)
def test_a_filter_holds(relayed, query, is_wanted):
    found = flows_of(watched(relayed, f"flows?watch=true&{query}", ADMIN))
    assert found == [each for each in happened() if is_wanted(each)]


def test_an_address_that_is_hidden_finds_nothing(relayed):
    assert watched(relayed, f"namespaces/shop/flows?watch=true&from={TELLER_IP}") == [b"\n"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (f"from=bank/{TELLER}", HTTPStatus.BAD_REQUEST),
        ("node=c", HTTPStatus.BAD_REQUEST),
        (f"service=bank/{VAULT}", HTTPStatus.BAD_REQUEST),
        ("from=nonsense/", HTTPStatus.BAD_REQUEST),
    ],
)
def test_what_may_not_be_asked_is_refused_at_once(relayed, query, status):
    with pytest.raises(ApiError) as refused:
        watched(relayed, f"namespaces/shop/flows?watch=true&{query}")
    assert refused.value.status == status
    assert not any(each in str(refused.value) for each in (VAULT,) if "service" not in query)


def test_states_of_nodes_have_no_addresses_of_nodes(relayed):
    own = NODES["a"][0]
    state = FollowedNode("a", runs=False, why=f"no route to {own}:10260")
    (piece,) = watched(relayed, "namespaces/shop/flows?watch=true", batches=([state],))
    found = read_watch_line(piece)
    assert found == FollowedNode("a", runs=False, why="no route to a node:10260")


def test_lost_flows_are_told_to_everybody(relayed):
    lost = LostFlows(lost=3)
    (piece,) = watched(relayed, "namespaces/shop/flows?watch=true", batches=([lost],))
    assert flows_of([piece]) == [lost]


def test_a_quiet_watch_has_signs_of_life_and_learns_of_new_rights(relayed, monkeypatch):
    times = iter([0.0, 1.0, 2.0, 17.0, 40.0])
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: next(times)))
    flows = [*happened()]

    def batches():
        yield from ([], [], [])
        relayed.allow("jane bank")
        relayed.cluster.rights._answers.clear()
        yield flows

    first = relayed.answers
    request = request_of("namespaces/shop/flows?watch=true")
    made = FlowWatches(first, batches).lines(request, JANE)
    assert [next(made) for _ in range(3)] == [b"\n", b"", b"\n"]
    relayed.cluster = first.cluster
    first.cluster.rights._answers.clear()
    clients = [each.client for each in flows_of(made) if isinstance(each, Flow)]
    assert f"bank/{TELLER}" in {each.pod for each in clients if each}


def test_errors_come_before_the_first_piece(relayed):
    def none():
        raise ClusterError("no agents found")

    with pytest.raises(ClusterError, match="no agents found"):
        FlowWatches(relayed.answers, none).lines(request_of("flows?watch=true"), ADMIN)

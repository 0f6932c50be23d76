# SPDX-License-Identifier: Apache-2.0
"""What agents are asked, and how their answers become a list."""

from dataclasses import asdict

import pytest

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.errors import ClusterError
from ebpflb.kubectl.asking import AgentAnswer, AgentQuestion, AskedAgents
from ebpflb.kubectl.explain import explained
from ebpflb.kubectl.services import merged, plain_frontends
from ebpflb.kubectl.top import sampled
from ebpflb.relay import answers
from tests.unit.kubectl.answers import flow, lines
from tests.unit.relay.cluster import ADMIN, OUTSIDE, SHOP_IP


def questions(relayed):
    return [question for node, question in relayed.agents.asked if node == "a"]


@pytest.mark.parametrize(
    ("what", "question"),
    [
        ("frontends", AgentQuestion("services", {"namespace": "shop"})),
        (
            "frontends?service=web",
            AgentQuestion("services", {"namespace": "shop", "service": "shop/web"}),
        ),
        ("rates", AgentQuestion("top", {"interval": "2", "namespace": "shop"})),
        ("rates?interval=500ms", AgentQuestion("top", {"interval": "0.5", "namespace": "shop"})),
        (
            "rates?at=2026-11-24T03:10%2B01:00",
            AgentQuestion(
                "top",
                {"at": "2026-11-24T02:10:00.000000000Z", "window": "60", "namespace": "shop"},
            ),
        ),
        (
            "rates?at=2026-11-24T03:10:00.5Z&window=5m",
            AgentQuestion(
                "top",
                {"at": "2026-11-24T03:10:00.500000000Z", "window": "300", "namespace": "shop"},
            ),
        ),
        ("flows", AgentQuestion("flows", {"limit": "20001", "services-of": "shop"})),
        (
            "flows?limit=5&since=1m&until=5s&verdict=failed&event=end&service=shop/web&to=FD00:0::7",
            AgentQuestion(
                "flows",
                {
                    "limit": "5",
                    "since": "1m",
                    "until": "5s",
                    "verdict": "failed",
                    "event": "end",
                    "service": "shop/web",
                    "to": "fd00::7",
                    "services-of": "shop",
                },
            ),
        ),
        (
            "connections?from=curl&older=90&backend-gone=true&service=web",
            AgentQuestion(
                "connections",
                {
                    "namespace": "shop",
                    "service": "shop/web",
                    "from": "shop/curl",
                    "older": "90.0s",
                    "backend-gone": True,
                },
            ),
        ),
        ("explanations?from=curl&to=web", AgentQuestion("explain", {}, ("shop/curl", "shop/web"))),
        (
            "explanations?from=curl&to=web&at=2026-11-24T03:12Z",
            AgentQuestion(
                "explain", {"at": "2026-11-24T03:12:00.000000000Z"}, ("shop/curl", "shop/web")
            ),
        ),
    ],
)
def test_what_agents_are_asked(relayed, what, question):
    relayed.found(f"namespaces/shop/{what}")
    (asked,) = questions(relayed)
    assert (asked.command, tuple(asked.arguments)) == (question.command, tuple(question.arguments))
    assert dict(asked.options) == dict(question.options)


def test_addresses_are_asked_for_as_agents_write_them(relayed):
    relayed.found("connections?from=FD00:0:0::0005", ADMIN)
    relayed.found("flows?from=%20::ffff:10.1.0.5&to=010.1.0.6", ADMIN)
    connections, flows = questions(relayed)
    assert connections.options["from"] == "fd00::5"
    assert (flows.options["from"], flows.options["to"]) == ("10.1.0.5", "10.1.0.6")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("rates?interval=x", "interval: 'x': want a duration from 0, as in 30s, 1m30s or 500ms"),
        ("rates?interval=0", "interval: want up to 10 seconds"),
        ("rates?interval=10.1", "interval: want up to 10 seconds"),
        ("rates?at=noon", "at: 'noon': want a time, as in 03:10 or 2026-11-24T03:10, or how long"),
        ("rates?at=1m&window=25h", "window: '25h': want from 1s to 24h"),
        ("flows?limit=20001", "limit: '20001': want a number from 0 to 20000"),
        ("flows?limit=1e3", "limit: '1e3': want a number from 0 to 20000"),
        ("flows?limit=-1", "limit: '-1': want a number from 0 to 20000"),
        ("flows?from=curl", "from: 'curl': want an address or NAMESPACE/NAME"),
        ("flows?to=10.0.0.1:80", "to: '10.0.0.1:80': want an address or NAMESPACE/NAME"),
        ("flows?to=shop/..", "to: 'shop/..': want an address or NAMESPACE/NAME"),
        ("flows?service=web", "service: 'web': want NAMESPACE/NAME"),
        ("connections?older=x", "older: 'x': want a duration from 0, as in 30s, 1m30s or 500ms"),
        ("connections?backend-gone=maybe", "backend-gone: 'maybe': want true or false"),
        ("explanations?to=shop/web", "from: say what is to be explained"),
        ("explanations?from=shop/curl", "to: say what is to be explained"),
        ("explanations?from=shop/..&to=shop/web", "from: 'shop/..': want an address or"),
        ("explanations?from=host&to=../web", "to: '../web': want an address or NAMESPACE/NAME"),
        ("explanations?from=host&to=shop/web&at=then", "at: 'then': want a time"),
        ("explanations?from=host&to=10.96.0.1", "'10.96.0.1': want a port from 1 to 65535"),
    ],
)  # fmt: skip
def test_wrong_values(relayed, what, why):
    assert relayed.refused(what, 400, ADMIN).startswith(why)
    assert not relayed.agents.asked


def test_a_backend_is_gone_or_not(relayed):
    relayed.found("connections?backend-gone=false", ADMIN)
    relayed.found("connections?backend-gone=1", ADMIN)
    assert [each.options["backend-gone"] for each in questions(relayed)] == [False, True]


@pytest.mark.parametrize(
    ("resource", "read"),
    [
        ("frontends", lambda asking: plain_frontends(merged(asking, {}))),
        ("rates", lambda asking: [asdict(each) for each in sampled(asking, 2.0, "")]),
        (
            f"explanations?from={OUTSIDE}&to=shop/web",
            lambda asking: [
                asdict(each) for each in explained(asking, AskedConnection(OUTSIDE, "shop/web"))
            ],
        ),
    ],
)
def test_of_all_namespaces_items_are_those_of_the_plugin(relayed, resource, read):
    asking = AskedAgents(relayed.access, relayed.cluster.agents.get(), relayed.agents)
    found = relayed.found(resource, ADMIN)
    assert found["items"]
    expected = read(asking)
    assert plain(found["items"]) == plain(expected)
    assert {error: set(nodes) for error, nodes in found["failures"].items()} == asking.failures


def plain(items):
    """As JSON has them, whichever node came first."""
    return sorted(str(_untyped(each)) for each in items)


def _untyped(value):
    if isinstance(value, dict):
        return {str(key): _untyped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_untyped(each) for each in value]
    return str(value) if isinstance(value, str) else value


def test_of_the_past_there_is_one_item_with_what_it_was_made_of(relayed):
    (found,) = relayed.found("namespaces/shop/rates?at=2026-11-24T03:10Z")["items"]
    assert found["records"]["end"] == "2026-11-24T03:10:00.000000000Z"
    (web,) = found["services"]
    assert (web["service"], web["connections"], web["active"]) == ("web", 6.0, None)
    pods = ["a node", "another namespace", "shop/curl"]
    assert sorted(each["pod"] for each in web["backends"]) == pods
    (every,) = relayed.found("rates?at=2026-11-24T03:10Z", ADMIN)["items"]
    assert len(every["services"]) == 2


def test_the_last_flows_of_all_nodes_are_in_order_and_have_their_node(relayed):
    seconds = {"a": (1, 4), "b": (2, 3)}
    relayed.agents.say = lambda agent, _: AgentAnswer(
        agent, 0, lines(*(flow(each, namespace="shop") for each in seconds[agent.node]))
    )
    found = relayed.found("flows?limit=3", ADMIN)["items"]
    assert [(each["seq"], each["node"]) for each in found] == [(2, "b"), (3, "b"), (4, "a")]


def test_more_than_can_be_kept_are_refused(relayed, monkeypatch):
    monkeypatch.setattr(answers, "MOST_ITEMS", 3)
    relayed.agents.say = lambda agent, _: AgentAnswer(
        agent, 0, lines(flow(1, namespace="shop"), flow(2, namespace="shop"))
    )
    why = relayed.refused("flows", 413, ADMIN)
    assert why == "more than 3 match: ask for fewer, by Service, time or number"
    # Not even agents send more.
    assert questions(relayed)[0].options["limit"] == "4"
    assert len(relayed.found("flows?limit=3", ADMIN)["items"]) == 3
    assert len(relayed.found("flows?node=a", ADMIN)["items"]) == 2


def test_flows_that_were_lost_are_told(relayed):
    relayed.agents.say = lambda agent, _: AgentAnswer(agent, 0, '{"lost": 5}\n')
    found = relayed.found("namespaces/shop/flows?from=shop/curl&node=a")["items"]
    assert found == [{"lost": 5, "node": "a"}]
    assert relayed.found("flows?node=a", ADMIN)["items"] == found


@pytest.mark.parametrize(
    ("filters", "clients"),
    [
        ("from=shop/curl", {"shop/curl"}),
        ("from=curl", {"shop/curl"}),
        (f"from={SHOP_IP}", {"shop/curl"}),
        (f"from=::ffff:{SHOP_IP}", {"shop/curl"}),
        (f"from={OUTSIDE}", {OUTSIDE}),
        ("from=10.244.7.7", set()),
        ("from=203.0.113.1", set()),
        ("from=shop/nobody", set()),
    ],
)
@pytest.mark.parametrize("resource", ["flows", "connections"])
def test_a_filter_finds_what_is_shown_alone(relayed, resource, filters, clients):
    found = relayed.found(f"namespaces/shop/{resource}?{filters}")["items"]
    shown = {each["client"].get("pod") or each["client"]["address"] for each in found}
    assert shown == clients


@pytest.mark.parametrize(
    ("target", "count"),
    [("10.96.0.10", 24), ("shop/curl", 24), (SHOP_IP, 24), ("10.244.7.7", 0), ("203.0.113.1", 0)],
)
def test_a_target_is_a_frontend_or_a_backend(relayed, target, count):
    found = relayed.found(f"namespaces/shop/flows?to={target}")["items"]
    assert len(found) == count


def test_without_agents_there_is_no_answer(relayed):
    relayed.objects.lists["/api/v1/pods"] = []
    assert relayed.refused("flows", 503, ADMIN).startswith("no agents found")


def test_a_client_on_a_node_without_an_agent_is_an_error(relayed):
    relayed.objects.texts["/api/v1/namespaces/shop/pods/curl"] = '{"spec": {"nodeName": "c"}}'
    why = relayed.refused("explanations?from=shop/curl&to=shop/web", 422, ADMIN)
    assert why == "shop/curl is on node c, where no agent runs"


def test_while_rights_cannot_be_asked_there_is_no_answer(relayed, monkeypatch):
    def create(*_):
        raise ClusterError("cannot reach the API server at https://203.0.113.1:6443")

    monkeypatch.setattr(relayed.access, "create", create)
    why = relayed.refused("namespaces/shop/flows", 503)
    assert why == "the API server does not tell what you may see: try again"

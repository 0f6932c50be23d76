# SPDX-License-Identifier: Apache-2.0
"""The relay in place of pods/exec: the same output, with no other right."""

import json
from types import SimpleNamespace

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.kubectl import cluster as of_the_cluster
from ebpflb.kubectl.access import Access
from ebpflb.kubectl.cluster import Cluster
from ebpflb.kubectl.execution import PodExecutor
from ebpflb.kubectl.live.sight import Sight
from ebpflb.kubectl.relay import Relay
from ebpflb.model.compact import from_compact
from ebpflb.words.observe import (
    CONNECTIONS,
    EXPLANATIONS,
    FLOWS,
    FRONTENDS,
    PATH,
    RATES,
)
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, compact_past, flow, service
from tests.unit.kubectl.api_server import DAEMON_SETS
from tests.unit.kubectl.relay.fake_relay import COMMANDS, DEFAULT, by_exec, by_relay

FORMATS = ("table", "wide", "json", "jsonl", "yaml")
PLACES = [*((resource, DEFAULT) for resource in COMMANDS), (FRONTENDS, ""), (CONNECTIONS, "")]


def as_exec_says(three, relay, resource, place=DEFAULT, *more, status=None):
    """The relay answers with what the plugin prints."""
    shown = by_exec(three, resource, "json", *more, status=status)
    relay.say(resource, json.loads(shown.stdout), place)


@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize(("resource", "place"), PLACES)
def test_both_ways_print_the_same(three, relay, resource, place, output):
    more = [] if place else ["-A"]
    as_exec_says(three, relay, resource, place, *more)
    expected = by_exec(three, resource, output, *more)
    assert expected.stdout
    three.objects.executed.clear()
    found = by_relay(three, resource, output, *more)
    assert found.stdout == expected.stdout
    assert found.stderr == expected.stderr == ""
    assert not three.objects.executed


@pytest.mark.parametrize("resource", COMMANDS)
def test_who_may_ask_the_relay_needs_no_other_right(three, relay, resource):
    as_exec_says(three, relay, resource)
    expected = by_exec(three, resource, "table").stdout
    three.objects.requested.clear()
    for path in ("/api/v1/pods", "/api/v1/nodes", DAEMON_SETS):
        three.objects.refused[path] = 403, "forbidden"
    assert by_relay(three, resource, "table", via="relay").stdout == expected
    assert by_relay(three, resource, "table").stdout == expected
    assert len(three.objects.requested) == len(relay.asked()) == 2


@pytest.mark.parametrize("resource", COMMANDS)
def test_nodes_that_fail_are_named_and_the_exit_status_is_the_same(three, relay, resource):
    command = COMMANDS[resource][0][0]
    three.fail("b", command, "Error: out of memory")
    status = 3 if resource == EXPLANATIONS else 1
    relay.failures = {"out of memory": ["b"], "no agent runs on this node": ["e", "d"]}
    as_exec_says(three, relay, resource, status=status)
    expected = by_exec(three, resource, "table", status=status)
    found = by_relay(three, resource, "table", status=status)
    assert found.stdout == expected.stdout
    assert found.stderr == "d, e: no agent runs on this node\nb: out of memory\n"


def test_a_node_without_an_agent_is_no_failure(three, relay):
    relay.failures = {"no agent runs on this node": ["d"]}
    relay.say(FLOWS, [])
    assert three.run("flows").stderr == "d: no agent runs on this node\n"


@pytest.mark.parametrize(
    ("words", "place", "parameters"),
    [
        (["services", "-n", "shop"], "namespaces/shop/frontends", {}),
        (["services", "-A", "--node", "a", "--node", "b"], "frontends", {"node": "a,b"}),
        (
            ["connections", "-n", "shop", "--from", "curl", "--older", "1h30m", "--backend-gone"],
            "namespaces/shop/connections",
            {"from": "shop/curl", "older": "5400.0s", "backend-gone": "true"},
        ),
        (["top", "-A", "--interval", "0.5"], "rates", {"interval": "0.5"}),
        (
            ["flows", "--service", "web", "--verdict", "refused", "--since", "5m", "--to", "::1"],
            "namespaces/default/flows",
            {"service": "default/web", "verdict": "refused", "since": "5m", "to": "::1"},
        ),
        (["flows", "-A"], "flows", {"limit": "20"}),
    ],
)
def test_it_is_asked_what_the_command_line_says(three, relay, words, place, parameters):
    path, _, resource = place.rpartition("/")
    relay.say(resource, [], f"{path}/" if path else "")
    three.run(*words)
    assert relay.asked() == [(place, parameters)]


@pytest.mark.parametrize(
    ("words", "namespace", "source", "target"),
    [
        (["curl", "web"], "default", "default/curl", "default/web"),
        (["curl:99", "shop/web:http"], "shop", "default/curl:99", "shop/web:http"),
        (["curl", "web.shop.svc:80/udp", "-n", "x"], "shop", "x/curl", "shop/web:80/udp"),
        (["host", "10.96.0.10:80", "-n", "x"], "x", "host", "10.96.0.10:80"),
        (["fd00::1", "[fd00::a]:53/udp"], "default", "fd00::1", "[fd00::a]:53/udp"),
    ],
)
def test_an_explanation_is_asked_for_in_the_namespace_of_its_service(
    three, relay, words, namespace, source, target
):
    relay.say(EXPLANATIONS, [], f"namespaces/{namespace}/")
    three.run("explain", *words, status=3)
    path = f"namespaces/{namespace}/explanations"
    assert relay.asked() == [(path, {"from": source, "to": target})]


def test_a_service_that_is_not_served_is_named(three, relay):
    for resource in (FRONTENDS, RATES):
        relay.say(resource, [])
    for command in ("services", "top"):
        done = three.run(command, "--service", "wep", status=1)
        assert done.stderr == "Error: no Service default/wep is served\n"
    assert not three.objects.executed


def test_by_exec_it_is_not_asked(three, relay):
    relay.say(FLOWS, [])
    assert len(three.run("flows", "--via", "exec").stdout.splitlines()) == 6
    assert not relay.asked()


def test_the_past_is_one_item_of_it(three, relay):
    past = json.loads(from_compact(compact_past(service(backend("10.1.0.1", 3.0)), count=5)))
    relay.say(RATES, [past], "namespaces/shop/")
    given = ("top", "-n", "shop", "--at", "2026-11-24T03:10Z")
    assert json.loads(three.run(*given, "-o", "json").stdout) == past
    parameters = {"at": "2026-11-24T03:10:00.000000000Z", "window": "60"}
    assert relay.asked() == [("namespaces/shop/rates", parameters)]


@pytest.mark.parametrize("items", [[], [{}, {}], [{"services": []}], ["x"]])
def test_of_the_past_anything_else_cannot_be_read(three, relay, items):
    relay.say(RATES, items)
    done = three.run("top", "--at", "10m", "--via", "relay", status=1)
    assert "the relay answers what this version cannot read" in done.stderr


@pytest.mark.parametrize("words", [["status"], ["doctor"], ["sysdump"]])
def test_what_only_nodes_know_is_not_asked_of_it(three, relay, words):
    done = three.run(*words, "--via", "relay", status=2)
    said = "Error: --via relay: only the nodes answer this, by --via exec (see `"
    assert done.output.startswith(said)
    assert not three.objects.requested


def test_people_at_a_terminal_are_told_the_way(three, relay, monkeypatch):
    relay.say(FLOWS, [])
    assert three.run("flows").stderr == ""
    screen = SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(of_the_cluster, "sys", screen)
    assert three.run("flows").stderr == "through the relay\n"
    assert three.run("flows", "--via", "relay").stderr == ""


def test_who_watches_asks_it_each_time(three, relay, monkeypatch):
    relay.say(FRONTENDS, [])
    items = json.loads(by_exec(three, FRONTENDS, "json").stdout)
    three.objects.requested.clear()
    interrupt_after(2, monkeypatch, between=lambda: relay.say(FRONTENDS, items))
    done = by_relay(three, FRONTENDS, "jsonl", "-w", status=INTERRUPTED)
    assert done.stdout == "".join(f"{json.dumps(each)}\n" for each in items)
    assert len(three.objects.requested) == len(relay.asked()) == 2


def test_who_watches_asks_it_again_once_it_is_ready(three, relay, monkeypatch):
    relay.say(FRONTENDS, [])
    relay.refuse(FRONTENDS, 503, "wait")
    interrupt_after(2, monkeypatch, between=three.objects.refused.clear)
    done = by_relay(three, FRONTENDS, "jsonl", "-w", status=INTERRUPTED)
    assert done.stdout == by_exec(three, FRONTENDS, "jsonl").stdout
    assert done.stderr.count("not through the relay (no pod of the relay is ready: wait)") == 1


def test_who_watches_asks_once_for_one_that_is_not_there(three, relay, monkeypatch):
    interrupt_after(3, monkeypatch)
    done = by_relay(three, FRONTENDS, "jsonl", "-w", status=INTERRUPTED)
    assert len(relay.asked()) == 1
    assert len(three.objects.executed) == 9
    assert done.stderr == ""


def test_who_watches_is_told_both_reasons(three, relay, monkeypatch):
    relay.refuse(FRONTENDS, 503, "wait")
    three.objects.refused[DAEMON_SETS] = 403, "daemonsets is forbidden: no"
    done = by_relay(three, FRONTENDS, "table", "-w", status=1)
    first, second = done.stderr.splitlines()
    assert "no pod of the relay is ready: wait" in first
    assert second.startswith("Error: cannot look for agents: RBAC forbids it: no")


@pytest.fixture
def sight(three):
    """A sight of the namespace `default`, through the relay or else the nodes."""
    access = Access(str(three.kubeconfig), seconds=60)
    return Sight(Cluster(access, (), PodExecutor(access), relay=Relay(access)), "default", 0.5)


def test_the_terminal_asks_it_for_everything(three, relay, sight):
    relay.failures = {"out of memory": ["b"]}
    relay.say(RATES, [service(backend("10.1.0.1"))])
    relay.say(FLOWS, [flow(1, node="a"), flow(2, node="b")])
    group = answered(frontend=FRONTEND, backends=[explained_backend()])
    asked = {"status": 0, "outcome": "works", "source": "x", "target": "y"}
    relay.say(EXPLANATIONS, [{**asked, "answer": group, "nodes": ["a"]}])
    rates = sight.services()
    assert [each.service for each in rates.found] == ["web"]
    assert rates.complaint == "b: out of memory"
    flows = sight.flows("default/web").found
    assert [each.seq for each in flows] == [2, 1]
    assert sight.explanation(flows[0]).found.startswith("On a:")
    assert sight.where == f"default, {sight.cluster.access.cluster}"
    assert relay.asked() == [
        ("namespaces/default/rates", {"interval": "0.5"}),
        ("namespaces/default/flows", {"service": "default/web", "limit": "100"}),
        (
            "namespaces/default/explanations",
            {"from": "default/curl", "to": "10.96.0.10:80/tcp"},
        ),
    ]
    assert len(three.objects.requested) == 3


def test_of_a_flow_of_which_not_all_may_be_seen_there_is_no_explanation(three, relay, sight):
    hidden = {"address": "", "pod": "another namespace"}
    relay.say(FLOWS, [flow(1, client=hidden), flow(2, frontend={"address": "", "port": 30080})])
    for each in sight.flows("default/web").found:
        looked = sight.explanation(each)
        assert looked == (None, "you may not see who this connection is from, or where it goes")
    assert len(relay.asked()) == 1


def test_the_terminal_says_why_it_asks_the_nodes(three, relay, sight):
    relay.refuse(RATES, 503, "wait")
    looked = sight.services()
    assert len(looked.found) == 2
    why = "no pod of the relay is ready: wait"
    assert looked.complaint == f"not through the relay ({why}): asking the nodes by pods/exec"
    assert sight.where.startswith("default, 3 nodes of ")
    three.objects.refused.clear()
    assert sight.services().complaint == ""
    assert len(relay.asked()) == 2


def test_a_reason_that_lasts_is_said_once_by_each_kind_of_look(three, relay, sight):
    relay.refuse(RATES, 403, "no rates")
    relay.refuse(FLOWS, 403, "no flows")
    first = [sight.services().complaint, sight.flows("default/web").complaint]
    assert [f"no {what}" in told for what, told in zip(("rates", "flows"), first, strict=True)]
    assert all(told.startswith("not through the relay (") for told in first)
    for _ in range(2):
        assert sight.services().complaint == sight.flows("default/web").complaint == ""
    three.fail("b", "top", "Error: out of memory")
    assert sight.services().complaint == "b: out of memory"
    relay.refuse(RATES, 503, "wait")
    assert "no pod of the relay is ready: wait" in sight.services().complaint
    del three.objects.refused[f"{PATH}/{DEFAULT}{RATES}"]
    relay.say(RATES, [])
    assert sight.services().complaint == ""
    relay.refuse(RATES, 503, "wait")
    assert "wait" in sight.services().complaint


def test_if_nothing_can_be_asked_the_reasons_stay(three, relay, sight):
    relay.refuse(RATES, 403, "no rates")
    three.objects.refused[DAEMON_SETS] = 403, "daemonsets is forbidden: no"
    for _ in range(2):
        told = sight.services().complaint
        assert "no rates" in told
        assert "cannot look for agents" in told

# SPDX-License-Identifier: Apache-2.0
"""What the plugin does if the relay does not answer, or oddly."""

import json
import re

import pytest

from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.relay import NoRelayError, Relay, RelayQuestion, UselessRelayError
from ebpflb.words.observe import (
    API_VERSION,
    CONNECTIONS,
    EXPLANATIONS,
    FLOWS,
    FRONTENDS,
    GROUP,
    PATH,
    RATES,
)
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl.answers import backend, flow, service
from tests.unit.kubectl.api_server import DAEMON_SETS
from tests.unit.kubectl.relay.fake_relay import COMMANDS, DEFAULT, FORBIDDEN, by_exec, by_relay


def test_where_there_is_none_nothing_is_said_of_it(three):
    assert three.run("flows").stderr == ""
    done = three.run("flows", "--via", "relay", status=1)
    assert done.stderr == (
        f"Error: no relay in this cluster: its API server knows no {API_VERSION}\n"
    )


def test_of_users_without_rights_the_api_server_hides_that_there_is_none(three, relay):
    relay.refuse(FLOWS, 403, FORBIDDEN)
    del three.objects.texts[f"/apis/{GROUP}"]
    assert three.run("flows").stderr == ""
    assert "no relay in this cluster" in three.run("flows", "--via", "relay", status=1).stderr


REFUSALS = [
    (403, FORBIDDEN, f"RBAC forbids it: {FORBIDDEN}"),
    (503, "service unavailable", "no pod of the relay is ready: service unavailable"),
]


@pytest.mark.parametrize(("status", "message", "why"), REFUSALS)
@pytest.mark.parametrize("resource", COMMANDS)
def test_if_it_does_not_answer_the_nodes_are_asked(three, relay, resource, status, message, why):
    relay.refuse(resource, status, message)
    done = by_relay(three, resource, "table")
    assert done.stdout == by_exec(three, resource, "table").stdout
    assert done.stderr == f"not through the relay ({why}): asking the nodes by pods/exec\n"
    done = by_relay(
        three, resource, "table", via="relay", status=3 if resource == EXPLANATIONS else 1
    )
    assert done.output == f"Error: {why}\n"


def test_if_nothing_is_allowed_both_reasons_are_said(three, relay):
    relay.refuse(FLOWS, 403, FORBIDDEN)
    forbidden = 'daemonsets is forbidden: User "me" cannot list them'
    three.objects.refused[DAEMON_SETS] = 403, forbidden
    done = three.run("flows", status=1)
    first, second = done.stderr.splitlines()
    assert first.startswith(f"not through the relay (RBAC forbids it: {FORBIDDEN}")
    assert second.startswith('Error: cannot look for agents: RBAC forbids it: User "me" cannot')
    three.objects.refused[f"{PATH}/{DEFAULT}flows"] = 404, "404 page not found"
    done = three.run("flows", status=1)
    assert done.stderr.startswith("Error: cannot look for agents: RBAC forbids it")
    assert done.stderr.endswith("; and there is no relay that could be asked\n")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "from: want an address"),
        (422, "from: want an address"),
        (429, "the relay is asked too much, try again later: from: want an address"),
        (504, "the relay takes too long: from: want an address"),
        (500, f"the API server answers 500 to {PATH}/{DEFAULT}flows: from: want an address"),
    ],
)
def test_an_error_that_the_nodes_would_not_mend_is_one_line(three, relay, status, said):
    relay.refuse(FLOWS, status, "from:\n want an address")
    done = three.run("flows", status=1)
    assert done.output == f"Error: {said}\n"
    assert not three.objects.executed


@pytest.mark.parametrize(("status", "left"), [(400, 2), (422, 3)])
def test_explain_tells_a_wrong_question_from_one_without_an_answer(three, relay, status, left):
    relay.refuse(EXPLANATIONS, status, "pod default/curl is not scheduled yet")
    done = three.run("explain", "curl", "web", status=left)
    assert "pod default/curl is not scheduled yet" in done.stderr


_ODD = [
    "<html>",
    "[]",
    "{}",
    "null",
    "[" * 100_000,
    '{"apiVersion": "v1", "kind": "FlowList", "items": []}',
    json.dumps({"apiVersion": API_VERSION, "kind": "Status", "items": []}),
]


@pytest.mark.parametrize("text", _ODD)
def test_an_odd_answer_is_one_line_and_the_nodes_are_asked(three, relay, text):
    three.objects.texts[f"{PATH}/{DEFAULT}flows"] = text
    done = three.run("flows")
    assert done.stdout == three.run("flows", "--via", "exec").stdout
    odd = r"the relay answers what this version cannot read \(.*\)"
    told = rf"not through the relay \({odd}\): asking the nodes by pods/exec\n"
    assert re.fullmatch(told, done.stderr)
    done = three.run("flows", "--via", "relay", status=1)
    assert re.fullmatch(rf"Error: {odd}\n", done.output)


def changed(items, at, value):
    """The last item with one field changed; None leaves it out."""
    *others, last = items
    rest = {name: each for name, each in last.items() if name != at}
    return [*others, rest if value is None else {**rest, at: value}]


@pytest.mark.parametrize(
    ("resource", "at", "value"),
    [
        (FRONTENDS, "port", "http"),
        (FRONTENDS, "dropped", -1),
        (FRONTENDS, "connections", 10**30),
        (FRONTENDS, "backends", ["10.1.0.1"]),
        (FRONTENDS, "scheduler", None),
        (FRONTENDS, "differences", {"x": "a"}),
        (RATES, "largest_share", 1e15),
        (RATES, "connections", -1.0),
        (RATES, "active", 10**400),
        (RATES, "backends", [backend("10.1.0.1", share=1e9)]),
        (RATES, "backends", [{}]),
        (RATES, "troubles", [7]),
        (FLOWS, "time", "yesterday"),
        (FLOWS, "client", "curl"),
        (CONNECTIONS, "age", "old"),
        (CONNECTIONS, "backend", None),
        (EXPLANATIONS, "status", 99),
        (EXPLANATIONS, "outcome", "odd"),
        (EXPLANATIONS, "nodes", None),
        (EXPLANATIONS, "answer", []),
    ],
)
def test_an_odd_item_is_one_line_and_the_nodes_are_asked(three, relay, resource, at, value):
    items = json.loads(by_exec(three, resource, "json").stdout)
    relay.say(resource, changed(items, at, value))
    done = by_relay(three, resource, "table")
    assert done.stdout == by_exec(three, resource, "table").stdout
    assert done.stderr.startswith("not through the relay (the relay answers what this version")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("odd", [7, ["b"], {"text": "b"}, {"text": [7]}])
def test_odd_failures_are_one_line_and_the_nodes_are_asked(three, relay, odd):
    relay.say(FLOWS, [], failures=odd)
    assert "what this version cannot read" in three.run("flows").stderr


@pytest.mark.parametrize(
    "odd", [{"kernel": 7}, {**answered(), "model": {"unasked": "", "left_out": {"a": "b"}}}]
)
def test_an_explanation_that_cannot_be_shown_is_one_line(three, relay, odd):
    groups = json.loads(by_exec(three, EXPLANATIONS, "json").stdout)
    relay.say(EXPLANATIONS, changed(groups, "answer", odd))
    done = by_relay(three, EXPLANATIONS, "table", status=1)
    assert done.stderr.startswith("a, c: an answer that this version cannot show (")
    assert done.stdout.startswith("On b:")


def test_an_answer_that_does_not_end_is_one_line_and_the_nodes_are_asked(three, relay, monkeypatch):
    relay.say(FLOWS, [flow(1, node="a")] * 100)
    monkeypatch.setattr("ebpflb.kubectl.access._MOST_BYTES", 10_000)
    done = three.run("flows")
    assert "cannot read (its answer does not end)): asking the nodes" in done.stderr
    assert len(done.stdout.splitlines()) == 6


def test_names_are_neither_escapes_nor_lines_of_their_own(three, relay):
    evil = "[bold]\x1b[2J\nb: fine"
    relay.failures = {evil: [evil]}
    relay.say(FLOWS, [flow(1, node=evil, pod=f"x/{evil}")])
    relay.say(
        FRONTENDS,
        changed(json.loads(by_exec(three, FRONTENDS, "json").stdout), "service", evil),
    )
    relay.say(RATES, [service(backend("10.1.0.1", pod=evil, trouble=evil), name=evil)])
    group = answered(frontend=FRONTEND, backends=[explained_backend(reason=evil)])
    asked = {"status": 1, "outcome": "fails", "source": evil, "target": evil}
    relay.say(EXPLANATIONS, [{**asked, "answer": group, "nodes": [evil]}])
    for words in (["flows"], ["services"], ["top", "--backends"]):
        shown = three.run(*words, status=1)
        assert "[bold]\\x1b[2J" in shown.stdout
        assert "\x1b" not in shown.output
        assert "b: fine" not in shown.output.splitlines()
    assert "\x1b" not in three.run("explain", "host", "web", status=1).output
    relay.refuse(FLOWS, 400, "\x1b[2J")
    assert three.run("flows", status=1).output == "Error: \\x1b[2J\n"


def test_errors_can_be_told_apart(three, relay, access):
    found = Relay(access)
    question = RelayQuestion(FLOWS, "default")
    kinds = {400: ConfigError, 422: ClusterError, 429: ClusterError, 503: UselessRelayError}
    for status, kind in (kinds | {403: UselessRelayError, 404: NoRelayError}).items():
        relay.refuse(FLOWS, status)
        with pytest.raises(kind) as error:
            found.ask(question, bytes)
        assert type(error.value) is kind
        with pytest.raises(kind) as error:
            found.follow(question)
        assert type(error.value) is kind
    assert found.is_missing


def test_a_relay_that_has_come_is_followed_and_then_asked(three, relay, access):
    found, question = Relay(access), RelayQuestion(FLOWS, "default")
    for _ in range(2):
        with pytest.raises(NoRelayError):
            found.ask(question, bytes)
    assert len(relay.asked()) == 1
    relay.watched().tell(b"line\n")
    relay.say(FLOWS, [])
    assert next(found.follow(question)) == "line"
    assert found.ask(question, bytes).found == b"[]"

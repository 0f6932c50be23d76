# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.errors import EbpflbError
from ebpflb.model.changes import Changes
from ebpflb.observe.flows import queries
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from ebpflb.web.answers import Answer
from tests.builders import CLUSTER_IP, NODE, endpoint, endpoint_slice, service
from tests.unit.agent.flows import pod_of


@pytest.fixture
def changes():
    made = Changes(NODE)
    for item in (service("web"), endpoint_slice("web-1", endpoint("10.1.0.5"))):
        made.set(item)
    return made


def routes_of(changes, ask_loop):
    return query_routes(ask_loop, changes, FlowLog(1, changes, lambda: None, pod_of(changes)))


def ask(changes, start, *rest):
    routes = routes_of(changes or Changes(NODE), lambda asked: asked.answer(changes))
    reply = routes[f"/v1/{start}"](Query(rest, {}))
    assert isinstance(reply, Answer)
    return json.loads(reply.body)


def test_a_service_is_known_by_its_name(changes):
    told = ask(changes, "services", "default", "web")
    assert (told["namespace"], told["name"]) == ("default", "web")
    assert [each["address"] for each in told["ports"][0]["endpoints"]] == ["10.1.0.5"]


def test_an_unknown_service_is_answered_with_names_like_it(changes):
    with pytest.raises(HttpQueryError, match="no Service default/wep") as caught:
        ask(changes, "services", "default", "wep")
    assert caught.value.status == 404
    assert "default/web" in str(caught.value)


def test_a_frontend_is_known_by_its_address(changes):
    assert ask(changes, "frontends", CLUSTER_IP, "80", "TCP") == {
        "namespace": "default",
        "name": "web",
    }
    with pytest.raises(HttpQueryError, match="no Service has that"):
        ask(changes, "frontends", CLUSTER_IP, "81", "TCP")


@pytest.mark.parametrize("path", [("x", "80", "TCP"), (CLUSTER_IP, "x", "TCP"), (CLUSTER_IP,)])
def test_a_question_that_is_none_is_refused(changes, path):
    with pytest.raises(HttpQueryError, match="want /v1/frontends"):
        ask(changes, "frontends", *path)
    with pytest.raises(HttpQueryError, match="want /v1/services"):
        ask(changes, "services", *path[:1])


def test_nothing_is_reported_before_all_objects_were_read():
    with pytest.raises(EbpflbError, match="has not read all objects yet"):
        ask(None, "services", "default", "web")


def test_a_busy_agent_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(queries, "PATIENCE_SECONDS", 0.01)
    routes = routes_of(Changes(NODE), lambda _: None)
    with pytest.raises(EbpflbError, match="busy"):
        routes["/v1/services"](Query(("default", "web"), {}))

# SPDX-License-Identifier: Apache-2.0
"""The screens, as keys make them, over agents behind an API server."""

import asyncio
import json

import pytest
from textual.widgets import DataTable, Input

from ebpflb.kubectl.access import Access
from ebpflb.kubectl.cluster import Cluster
from ebpflb.kubectl.execution import PodExecutor
from ebpflb.kubectl.live.app import ExplainScreen, ServiceScreen, ServicesScreen
from ebpflb.kubectl.live.sight import Sight
from ebpflb.kubectl.relay import Relay
from ebpflb.words.observe import API_VERSION, PATH
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl.answers import backend, compact_top, flow, lines, service
from tests.unit.kubectl.live.keys import opened

TALK = "default/web:http"


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    web = service(backend("10.1.0.1", 30.0), backend("10.1.0.2", 2.0, trouble="answers nobody"))
    api = service(backend("10.1.0.3", 90.0), name="api", troubles=["refuses connections"])
    nodes.say("a", "top --compact", compact_top(web, api))
    nodes.say("b", "top --compact", compact_top(web))
    to_second = {"address": "10.1.0.2", "port": 8080}
    nodes.say("a", "flows", lines(flow(1), flow(3, backend=to_second, verdict="failed")))
    nodes.say("b", "flows", lines(flow(2)))
    answer = answered(frontend=FRONTEND, backends=[explained_backend()])
    for name in "ab":
        nodes.say(name, "explain", answer)
    nodes.objects.texts["/api/v1/namespaces/default/pods/curl"] = json.dumps(
        {"spec": {"nodeName": "b"}}
    )
    return nodes


def sight(nodes, *, through_relay):
    access = Access(str(nodes.kubeconfig), seconds=60)
    relay = Relay(access) if through_relay else None
    return Sight(Cluster(access, (), PodExecutor(access), relay=relay), "", 0.5)


def names(keys):
    return [row[0].lstrip("! ") for row in keys.rows("services")]


def run(test, nodes, *, through_relay=False):
    async def driven():
        async with opened(sight(nodes, through_relay=through_relay)) as keys:
            await test(keys)

    asyncio.run(driven())


def test_services_of_all_nodes_come_by_their_rate_with_their_trouble(two):
    async def test(keys):
        await keys.until(lambda: len(keys.rows("services")) == 2)
        first, second = keys.rows("services")
        assert (first[0], first[1], first[-1]) == (
            "! default/api:http",
            "90",
            "refuses connections (1 node)",
        )
        assert second[1] == "64"

    run(test, two)


def test_they_are_sorted_by_another_column(two):
    async def test(keys):
        await keys.until(lambda: names(keys) == ["default/api:http", TALK])
        await keys.press("s")
        await keys.until(lambda: names(keys) == [TALK, "default/api:http"])

    run(test, two)


def test_a_part_of_a_name_selects_and_enter_returns_to_the_table(two):
    async def test(keys):
        await keys.press("slash", *"web", "enter")
        await keys.until(lambda: names(keys) == [TALK])
        assert keys.app.focused.id == "services"
        await keys.press("slash", *["backspace"] * 3, "enter")
        await keys.until(lambda: len(names(keys)) == 2)
        assert not keys.app.screen.query_one("#filter", Input).display

    run(test, two)


def test_the_cursor_stays_with_its_service_when_the_order_changes(two):
    async def test(keys):
        await keys.until(lambda: len(names(keys)) == 2)
        await keys.press("down")
        busy = service(backend("10.1.0.1", 900.0))
        two.say("b", "top --compact", compact_top(busy))
        await keys.until(lambda: names(keys)[0] == TALK)
        assert keys.app.screen.query_one("#services", DataTable).cursor_row == 0

    run(test, two)


def test_a_service_opens_to_its_backends_and_flows_and_a_flow_to_its_explanation(two):
    async def test(keys):
        await keys.press("slash", *"web", "enter", "enter")
        await keys.until(lambda: isinstance(keys.app.screen, ServiceScreen))
        await keys.until(lambda: len(keys.rows("flows")) == 3)
        assert [row[0] for row in keys.rows("backends")] == ["10.1.0.1:8080", "10.1.0.2:8080"]
        assert [row[1] for row in keys.rows("flows")] == ["a", "b", "a"]
        await keys.press("tab", "enter")
        await keys.until(lambda: isinstance(keys.app.screen, ExplainScreen))
        await keys.until(lambda: "On b:" in keys.text("answer"))
        assert "works" in keys.text("answer")
        await keys.press("escape", "escape")
        assert isinstance(keys.app.screen, ServicesScreen)

    run(test, two)


def test_a_backend_selects_its_flows_and_once_more_all(two):
    async def test(keys):
        await keys.press("slash", *"web", "enter", "enter")
        await keys.until(lambda: len(keys.rows("flows")) == 3)
        await keys.press("down", "enter")
        await keys.until(lambda: [row[2] for row in keys.rows("flows")] == ["failed"])
        await keys.press("enter")
        await keys.until(lambda: len(keys.rows("flows")) == 3)

    run(test, two)


def test_backends_whose_addresses_may_not_be_seen_are_rows_of_their_own(two):
    hidden = {"address": "", "port": 0, "pod": "another namespace"}
    rate = service(backend("10.1.0.1"), backend(**hidden), backend(**hidden))
    answer = {"apiVersion": API_VERSION, "kind": "RateList", "items": [rate]}
    two.objects.texts[f"{PATH}/rates"] = json.dumps(answer)
    flows = [flow(1, node="a", backend=hidden), flow(2, node="b")]
    answer = {"apiVersion": API_VERSION, "kind": "FlowList", "items": flows}
    two.objects.texts[f"{PATH}/flows"] = json.dumps(answer)

    async def test(keys):
        assert "nodes of" not in keys.app.sub_title
        await keys.press("enter")
        await keys.until(lambda: len(keys.rows("flows")) == 2)
        assert [row[0] for row in keys.rows("backends")] == places
        await keys.press("down", "down", "enter")
        await keys.until(lambda: len(keys.rows("flows")) == 1)

    places = ["10.1.0.1:8080", *["another namespace"] * 2]
    run(test, two, through_relay=True)
    assert not two.objects.executed


def test_a_node_that_fails_is_named_and_what_was_known_stays(two):
    async def test(keys):
        await keys.until(lambda: len(names(keys)) == 2)
        for name in "ab":
            two.fail(name, "top --compact", "Error: nothing is loaded\n")
        await keys.until(lambda: "a, b: nothing is loaded" in keys.text("complaint"))
        assert len(names(keys)) == 2

    run(test, two)


def test_names_of_others_are_neither_markup_nor_escapes(two):
    evil = service(backend("10.1.0.1", 1.0), name="[bold]\x1b[31mred")
    two.say("a", "top --compact", compact_top(evil))
    two.say("b", "top --compact", compact_top())

    async def test(keys):
        await keys.until(lambda: len(names(keys)) == 1)
        (shown,) = names(keys)
        assert "[bold]" in shown
        assert "\x1b" not in shown

    run(test, two)


def test_without_a_terminal_it_says_what_to_use(two):
    done = two.run("live", status=1)
    assert "live needs a terminal" in done.stderr

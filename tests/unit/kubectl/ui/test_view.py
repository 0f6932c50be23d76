# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from msgspec.json import encode

from ebpflb.errors import ConfigError
from ebpflb.kubectl.ui.active import ActiveNow
from ebpflb.kubectl.ui.query import ViewQuery, parse_query
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.kubectl.ui.view import View
from tests.ui.flows import dropped, failed, flow, of_node, refused


@pytest.fixture
def traffic():
    return EdgeTraffic(lambda: 1000.0)


def shown(traffic, **query):
    return View(traffic, ViewQuery(**query)).map_and_table()


def names(found):
    return [[group["name"] for group in column] for column in found["columns"]]


def test_no_flows(traffic):
    found = shown(traffic)
    assert found["columns"] == [[], [], []]
    assert (found["links"], found["rows"], found["rest"]["rows"], found["seen"]) == ([], [], 0, 0)


@pytest.mark.parametrize(
    ("group", "columns"),
    [
        ("workload", [["shop/cart"], ["shop/web"], ["shop/web"]]),
        ("pod", [["shop/cart-0", "shop/cart-1"], ["shop/web"], ["shop/web-0"]]),
        ("namespace", [["shop"], ["shop"], ["shop"]]),
        ("node", [["node1", "node2"], ["shop/web"], ["node2"]]),
        ("zone", [["unknown zone", "zone-b"], ["shop/web"], ["zone-b"]]),
    ],
)
def test_grouping(traffic, group, columns):
    traffic.add(of_node("node1", flow(client="shop/cart-0", backend="shop/web-0")))
    traffic.add(of_node("node2", flow(client="shop/cart-1", backend="shop/web-0")))
    assert names(shown(traffic, group=group)) == columns


@pytest.mark.parametrize(
    ("group", "clients"),
    [
        ("workload", ["10.1.0.9", "outside"]),
        ("pod", ["10.1.0.9", "198.51.100.7", "198.51.100.8"]),
        ("namespace", ["no pod known", "outside"]),
        ("node", ["node1", "outside → node1", "outside → node2"]),
    ],
)
def test_grouping_of_clients_without_a_name(traffic, group, clients):
    for node, address in (("node1", "198.51.100.7"), ("node2", "198.51.100.8")):
        traffic.add(of_node(node, flow(client={"address": address}, source="elsewhere")))
    traffic.add(of_node("node1", flow(client={"address": "10.1.0.9"})))
    assert names(shown(traffic, group=group))[0] == clients


@pytest.mark.parametrize(
    ("group", "clients"),
    [
        ("workload", ["another namespace"]),
        ("pod", ["another namespace"]),
        ("namespace", ["another namespace"]),
        ("node", ["node1", "node2", "unknown node"]),
    ],
)
def test_all_that_may_not_be_seen_is_one_card(traffic, group, clients):
    hidden = {"address": "", "pod": "another namespace"}
    for node in ("node1", "node2"):
        traffic.add(of_node(node, flow(client=hidden)))
    traffic.add(of_node("node1", flow(client=hidden, source="elsewhere")))
    found = shown(traffic, group=group)
    assert names(found)[0] == clients
    assert sum(each["connections"] for each in found["rows"]) == 3


def test_columns_links_and_rows_have_the_same_sums(traffic):
    for number in range(60):
        for made in (flow, failed, refused, dropped):
            traffic.add(of_node("node1", made(client=f"a/c{number}x", service=f"b/s{number % 40}")))
    found = shown(traffic, rows=10)
    for column in found["columns"]:
        assert sum(group["connections"] for group in column) == 240
        assert sum(group["failed"] for group in column) == 60
    for at in (0, 1):
        links = [link for link in found["links"] if link["column"] == at]
        assert sum(link["connections"] for link in links) == 240
    rows = sum(row["connections"] for row in found["rows"])
    assert rows + found["rest"]["connections"] == 240
    assert len(found["rows"]) + found["rest"]["rows"] == 60 * 3


def test_a_column_shows_the_largest_and_the_others(traffic):
    for number in range(40):
        for _ in range(number + 1):
            traffic.add(of_node("node1", flow(service=f"a/s{number:02}")))
    services = shown(traffic)["columns"][1]
    assert [each["name"] for each in services] == [f"a/s{n}" for n in range(26, 40)] + ["others"]
    assert services[-1]["hidden"] == 26
    assert services[-1]["connections"] == sum(range(1, 27))


def test_a_small_service_with_a_problem_is_not_among_the_others(traffic):
    for number in range(500):
        for _ in range(3):
            traffic.add(of_node("node1", flow(service=f"a/s{number}")))
    traffic.add(of_node("node1", refused(service="a/broken")))
    services = shown(traffic)["columns"][1]
    assert "a/broken" in [each["name"] for each in services]
    assert shown(traffic)["rows"][0]["service"]["name"] == "a/broken"


def test_every_service_with_a_problem_comes_before_those_without(traffic):
    for number in range(13):
        traffic.add(of_node("node1", refused(service=f"a/broken{number:02}")))
        for _ in range(9):
            traffic.add(of_node("node1", flow(service=f"a/fine{number:02}")))
    services = [each["name"] for each in shown(traffic)["columns"][1]]
    assert services[:13] == [f"a/broken{number:02}" for number in range(13)]
    assert services[13:] == ["a/fine00", "others"]


def test_services_have_their_open_connections(traffic):
    for service in ("shop/web", "shop/api", "dev/new"):
        traffic.add(of_node("node1", flow(service=service)))
    now = ActiveNow({"shop/web": 5, "shop/api": 3, "pay/api": 9})

    def column(group):
        found = View(traffic, ViewQuery(group=group), now).map_and_table()
        return {each["name"]: each["active"] for each in found["columns"][1]}

    assert column("workload") == {"shop/web": 5, "shop/api": 3, "dev/new": None}
    assert column("namespace") == {"shop": 8, "dev": 0}
    view = View(traffic, ViewQuery(via="service:shop/api"), now)
    found = view.map_and_table()
    assert found["active"] == 17
    assert {each["service"]["name"]: each["active"] for each in found["rows"]} == column("pod")
    assert view.open_line()["active"] == 3
    assert View(traffic, ViewQuery(namespace="pay"), now).map_and_table()["active"] == 9


def test_reasons_without_end_do_not_fill_the_column(traffic):
    for number in range(50):
        traffic.add(of_node("node1", dropped(f"r{number}")))
    traffic.add(of_node("node1", flow()))
    pods = shown(traffic)["columns"][2]
    assert len([each for each in pods if each["kind"] == "nobody"]) == 6
    assert "workload" in [each["kind"] for each in pods]


@pytest.mark.parametrize(
    ("query", "connections"),
    [
        ({}, 6),
        ({"namespace": "shop"}, 3),
        ({"namespace": "pay"}, 3),
        ({"namespace": "none"}, 0),
        ({"service": "pay/api"}, 2),
        ({"node": "node1"}, 3),
        ({"node": "node2"}, 4),
        ({"node": "node9"}, 1),
        ({"verdict": "failed"}, 1),
        ({"verdict": "refused"}, 1),
        ({"verdict": "dropped"}, 1),
        ({"verdict": "forwarded"}, 3),
        ({"text": "CART"}, 3),
        ({"text": "source range"}, 1),
        ({"text": "198.51"}, 1),
        ({"text": "zone-b", "namespace": "pay"}, 2),
    ],
)
def test_filters(traffic, query, connections):
    outside = {"address": "198.51.100.7"}
    for node, made in (
        ("node1", flow()),
        ("node1", failed()),
        ("node1", flow(service="pay/api", client="shop/cart-0")),
        ("node3", refused(service="pay/api", client="dev/curl")),
        ("node3", dropped(service="x/y", client=outside, source="elsewhere")),
        ("node9", flow(service="pay/db", client="pay/api-0", backend="pay/db-0")),
    ):
        traffic.add(of_node(node, made))
    found = shown(traffic, **query)
    assert found["total"]["connections"] == connections
    assert sum(row["connections"] for row in found["rows"]) == connections
    assert found["seen"] == 6


def test_rows_are_sorted(traffic):
    for client, count in (("a/b", 3), ("a/a", 1), ("a/c", 2)):
        for _ in range(count):
            traffic.add(
                of_node("node1", flow(client=client, bytes={"original": 7 - count, "reply": 0}))
            )
    traffic.add(of_node("node1", failed(client="a/a")))

    def clients(sort):
        return [row["client"]["name"] for row in shown(traffic, sort=sort)["rows"]]

    assert clients("client") == ["a/a", "a/b", "a/c"]
    assert clients("connections") == ["a/b", "a/a", "a/c"]
    assert clients("problems") == ["a/a", "a/b", "a/c"]
    assert clients("sent") == ["a/b", "a/c", "a/a"]


def test_an_open_line_has_its_flows(traffic):
    traffic.add(of_node("node1", flow(client="a/b")))
    traffic.add(of_node("node1", failed(client="a/c")))
    query = ViewQuery(client="workload:a/c", via="service:shop/web")
    found = View(traffic, query).open_line()
    assert found["total"]["connections"] == 1
    assert [each["flow"].client.pod for each in found["flows"]] == ["a/c"]
    assert found["history"][-1] == (1000, 1, 1)
    assert json.loads(encode(found))["flows"][0]["flow"]["verdict"] == "failed"


def test_the_others_can_be_opened(traffic):
    for number in range(40):
        for _ in range(number + 1):
            traffic.add(of_node("node1", flow(service=f"a/s{number:02}")))
    found = View(traffic, ViewQuery(via="others:others")).open_line()
    assert found["total"]["connections"] == sum(range(1, 27))
    assert {each["flow"].service.name for each in found["flows"]} <= {f"s{n:02}" for n in range(26)}


def test_a_line_among_the_others_can_still_be_opened(traffic):
    for number in range(40):
        for _ in range(number + 1):
            traffic.add(of_node("node1", flow(service=f"a/s{number:02}")))
    found = View(traffic, ViewQuery(via="service:a/s05")).open_line()
    assert found["total"]["connections"] == 6


def test_choices_name_what_the_filters_may_want(traffic):
    traffic.add(of_node("node1", flow(client="dev/curl")))
    traffic.add(of_node("node1", flow() | {"service": None}))
    choices = shown(traffic, namespace="nothing")["choices"]
    assert choices == {"namespaces": ["dev", "shop"], "services": ["shop/web"]}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"depth": "pod"}, "unknown parameter 'depth'"),
        ({"group": "team"}, "group: 'team' is not one of workload, pod"),
        ({"window": "61"}, "window: '61' is not one of 60, 300"),
        ({"verdict": "lost"}, "verdict: 'lost' is not one of forwarded, failed"),
        ({"sort": "name"}, "sort: 'name' is not one of problems"),
        ({"until": "2026-11-29T03:10:00"}, "until: '2026-11-29T03:10:00' is not a time with"),
        ({"until": "yesterday"}, "until: 'yesterday' is not a time with its zone, as 20"),
        ({"rows": "-1"}, "rows: '-1' is not a number from 1 to 10000"),
        ({"rows": "²"}, "rows: '²' is not a number"),
        ({"rows": "10001"}, "rows: '10001' is not a number"),
        ({"rows": ""}, "rows: '' is not a number"),
        ({"text": "x" * 1000}, "text: longer than 759 characters"),
    ],
)
def test_queries_that_cannot_be(given, why):
    with pytest.raises(ConfigError) as refusal:
        parse_query(given)
    assert str(refusal.value).startswith(why)


def test_a_query_has_what_the_page_asks_for():
    query = parse_query({"group": "node", "window": "300", "rows": "5", "verdict": "", "text": "x"})
    assert query == ViewQuery(group="node", window=300, rows=5, text="x")


def test_a_window_ends_with_a_slot():
    assert parse_query({"until": "1970-01-01T01:00:59+00:00"}).until == 3640
    assert parse_query({"until": "1970-01-01T01:00:59Z"}).until == 3640
    assert parse_query({"until": ""}).until == 0

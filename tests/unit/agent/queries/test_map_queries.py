# SPDX-License-Identifier: Apache-2.0
"""What the agent answers the relay is what the commands print for the same maps."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebpflb.agent import map_queries
from ebpflb.agent.map_queries import MapQueries
from ebpflb.cli import agent_client
from ebpflb.cli import connections as connections_command
from ebpflb.cli import services as services_command
from ebpflb.cli import top as top_command
from ebpflb.dataplane.layout.structs import LbCounts
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view import connections as connections_view
from ebpflb.dataplane.view import rates as rates_view
from ebpflb.errors import EbpflbError
from ebpflb.model.address import Address
from ebpflb.model.changes import Changes
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.frontends import form_decoder, rows_decoder
from ebpflb.model.compact.rates import rates_decoder
from ebpflb.model.pod import NOBODY, NamedPod, Pod
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.past_rates import PastRatesQueries
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from ebpflb.web.answers import Answer
from tests.builders import NODE, address, endpoint, endpoint_slice
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import pod_of
from tests.unit.cli.invoked import output_of
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.view.opened import GONE, NOW, POD, SERVING, Opened
from tests.unit.model.compact.rates import backend, service

HOST = "10.0.0.1"
HOUR = 3600


class Node:
    """An agent, and the commands on its node."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.maps = opened.maps
        self.changes = Changes(NODE)
        self.log = FlowLog(1, self.changes, lambda: self.maps, pod_of(self.changes))
        past = PastRatesQueries(self.log, None, 1)
        self.map_queries = MapQueries(
            lambda: self.maps,
            self.changes,
            past.answer,
            lambda address: self.gone.get(address, NOBODY),
        )
        self.gone: dict[Address, NamedPod] = {}
        self.now = 0.0

    def names(self) -> object:
        """What the agent tells commands."""
        answer = query_routes(self.changes, self.log)["/v1/names"](Query((), {}))
        assert isinstance(answer, Answer)
        return json.loads(answer.body)

    def ask(self, path: str, **parameters: str) -> bytes:
        query = Query((), {name.replace("_", "-"): value for name, value in parameters.items()})
        answer = self.map_queries.routes[path](query)
        return answer.body if isinstance(answer, Answer) else b"".join(answer.pieces)

    def connections(self, **parameters: str) -> list[object]:
        return [json.loads(line) for line in self.ask("/v1/connections", **parameters).splitlines()]

    def pause(self, seconds: float) -> None:
        """Stands in for time.sleep(): meanwhile there are connections, to the first frontend."""
        self.now += seconds
        table = self.maps["lb_count_front"]
        found = LbCounts.from_buffer_copy(table.lookup(bytes(4)) or b"")
        found.connections, found.failed = found.connections + 9, found.failed + 3
        table.update(bytes(4), bytes(found).ljust(table.value_size, b"\0"))


@pytest.fixture
def node(monkeypatch):
    made = Node(Opened())
    here = backends(SERVING, local=True)
    shop = named("web", "http")._replace(namespace="shop")
    Sync(made.maps, quiesce=lambda: None).resync(
        by_service(
            frontend("10.96.0.1", here, service=named("web", "http")),
            frontend("10.96.0.2", backends(GONE), service=shop),
            frontend("10.96.0.3", service=named("empty")),
        )
    )
    made.changes.set(endpoint_slice("web-1", endpoint(SERVING, pod="default/web-0")))
    made.changes.set(Pod("shop", "curl-x1", (address(POD),), workload="Deployment/curl"))
    opened = Generation(1, 1, Path("/pins/1-1")), made.maps
    for module in (services_command, top_command, connections_command):
        monkeypatch.setattr(module, "open_pins", lambda _: opened)
    monkeypatch.setattr(agent_client, "ask", lambda *_: made.names())
    return made


def command(name: str, *arguments: str) -> str:
    socket = () if name == "services" else ("--query-socket", "/agent.sock")
    return output_of(name, *arguments, *socket)


def printed(*arguments: str) -> list[object]:
    lines = command("connections", "-o", "jsonl", *arguments).splitlines()
    return [json.loads(line) for line in lines]


def same(found: list[object], expected: list[object]) -> bool:
    """In any order."""
    return sorted(map(repr, found)) == sorted(map(repr, expected))


def services_of(answer: bytes) -> list[str]:
    rows = rows_decoder.decode(from_compact(answer.decode()))
    return [form_decoder.decode(row.form).name.service_port for row in rows]


# Frontends


@pytest.mark.parametrize(
    ("parameters", "options", "count"),
    [
        ({}, (), 3),
        ({"namespace": ""}, (), 3),
        ({"namespace": "shop"}, ("-n", "shop"), 1),
        ({"namespace": "none"}, ("-n", "none"), 0),
        ({"service": "shop/web"}, ("--service", "shop/web"), 1),
        ({"service": "default/web", "namespace": "default"}, ("--service", "default/web"), 1),
        ({"service": "default/wep"}, ("--service", "default/wep"), 0),
    ],
)
def test_frontends_are_those_of_the_command(node, parameters, options, count):
    node.pause(0)
    answer = node.ask("/v1/services", **parameters)
    assert answer.decode() == command("services", "--compact", *options).strip()
    assert len(services_of(answer)) == count


def test_a_service_in_another_namespace_is_none(node):
    assert services_of(node.ask("/v1/services", service="shop/web", namespace="default")) == []


# Rates


@pytest.fixture
def clock(node, monkeypatch):
    """Time passes only while somebody waits."""
    sampler = partial(rates_view.TrafficSampler, clock=lambda: node.now)
    for module in (map_queries, rates_view):
        monkeypatch.setattr(module, "TrafficSampler", sampler)
    monkeypatch.setattr("time.sleep", node.pause)


@pytest.mark.parametrize(
    ("parameters", "options", "count"),
    [
        ({}, ("--interval", "1"), 3),
        ({"interval": "2"}, (), 3),
        ({"interval": "500ms"}, ("--interval", "0.5"), 3),
        ({"namespace": "shop"}, ("-n", "shop"), 1),
        ({"namespace": "none", "interval": ""}, ("-n", "none"), 0),
    ],
)
def test_rates_are_those_of_the_command(node, clock, parameters, options, count):
    answer = node.ask("/v1/top", **parameters)
    assert answer.decode() == command("top", "--compact", *options).strip()
    assert len(rates_decoder.decode(from_compact(answer.decode()))) == count


@pytest.mark.parametrize(("interval", "seconds"), [("", 1), ("2", 2), ("30", 30), ("100ms", 0.1)])
def test_a_sample_is_as_long_as_was_asked_for(node, clock, interval, seconds):
    found = rates_decoder.decode(from_compact(node.ask("/v1/top", interval=interval).decode()))
    assert node.now == seconds
    (numbers,) = filter(None, (row.numbers for row in found))
    assert numbers[0] == round(9000 / seconds)


def test_a_backend_of_this_node_has_the_name_of_its_pod(node, clock):
    found = rates_decoder.decode(from_compact(node.ask("/v1/top").decode()))
    assert [each.state.pod for row in found for each in row.more] == ["default/web-0"]


def test_of_removed_backends_rates_have_the_names_of_pods_too(node, clock, monkeypatch):
    node.gone = {address(GONE): NamedPod("default/web-9")}
    on_gone = service(backend(GONE, offered=False, removed=True), backend(SERVING, local=True))
    monkeypatch.setattr(map_queries, "rates", lambda *_: [on_gone])
    (row,) = rates_decoder.decode(from_compact(node.ask("/v1/top").decode()))
    assert [(each.place[0], each.state.pod) for each in row.more] == [
        (GONE, "default/web-9"),
        (SERVING, ""),
    ]


# Connections


@pytest.fixture
def opened(node, monkeypatch):
    """Two of a pod's, one of them to a backend that is gone, and one from outside."""
    at_that_time = partial(connections_view.open_connections, now=lambda: NOW)
    for module in (connections_view, map_queries):
        monkeypatch.setattr(module, "open_sockets", lambda: node.opened.sockets)
        monkeypatch.setattr(module, "open_connections", at_that_time)
    node.opened.tcp(1)
    node.opened.tcp(2, GONE, age=2 * HOUR)
    node.opened.flow()
    return node.opened


@pytest.mark.parametrize(
    ("parameters", "options", "count"),
    [
        ({}, (), 3),
        ({"namespace": "default"}, ("-n", "default"), 3),
        ({"namespace": "shop"}, ("-n", "shop"), 0),
        ({"service": "default/web"}, ("--service", "default/web"), 3),
        ({"from": POD}, ("--from", POD), 2),
        ({"from": "shop/curl-x1"}, ("--from", "shop/curl-x1"), 2),
        ({"from": "shop/other"}, ("--from", "shop/other"), 0),
        ({"from": "198.51.100.7"}, ("--from", "198.51.100.7"), 1),
        ({"older": "1h"}, ("--older", "1h"), 1),
        ({"backend-gone": "true"}, ("--backend-gone",), 1),
        ({"backend-gone": "false", "older": ""}, (), 3),
    ],
)
def test_connections_are_those_of_the_command(node, opened, parameters, options, count):
    found = node.connections(**parameters)
    assert same(found, printed(*options))
    assert len(found) == count


def test_connections_have_the_names_of_pods_and_the_workloads_of_this_nodes(node, opened):
    (found,) = node.connections(older="1h")
    assert found["client"] == {
        "address": POD,
        "port": 4002,
        "pod": "shop/curl-x1",
        "workload": "Deployment/curl",
    }


def test_a_removed_backend_has_the_name_of_the_pod_that_was_there_last(node, opened):
    node.gone = {address(GONE): NamedPod("default/web-9", "Deployment/web")}
    (found,) = node.connections(backend_gone="true")
    assert found["backend"] == {
        "address": GONE,
        "port": 8080,
        "pod": "default/web-9",
        "workload": "Deployment/web",
    }
    assert [each["backend"].get("pod") for each in node.connections()].count("default/web-9") == 1


def test_pods_on_the_hosts_network_have_no_name(node, opened):
    both = [endpoint(SERVING, pod=f"default/host-{number}") for number in range(2)]
    node.changes.set(endpoint_slice("web-1", *both))
    assert [each["backend"].get("pod", "") for each in node.connections()] == [""] * 3
    assert same(node.connections(), printed())


def test_very_many_connections_come_in_pieces(node, opened):
    for cookie in range(10, 1010):
        node.opened.tcp(cookie)
    answer = node.map_queries.routes["/v1/connections"](Query((), {}))
    pieces = [piece.count(b"\n") for piece in answer.pieces]
    assert (sum(pieces), max(pieces)) == (1003, 256)


def test_an_address_may_be_written_in_another_way(node, opened):
    client = "fd00::5"
    for path in ("FD00::5", "fd00:0::5", client):
        wanted = node.map_queries.routes["/v1/connections"](Query((), {"from": path}))
        assert list(wanted.pieces) == []
    assert map_queries._client("FD00:0::5") == client


def test_sockets_that_cannot_be_listed_are_one_line(node, opened, monkeypatch):
    def refused():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(map_queries, "open_sockets", refused)
    with pytest.raises(EbpflbError, match=r"^cannot list the sockets: Operation not permitted$"):
        node.connections()


# Wrong questions


@pytest.mark.parametrize(
    ("path", "parameters", "text"),
    [
        ("/v1/services", {"nmespace": "x"}, "unknown parameter 'nmespace' (did you mean namespace"),
        ("/v1/services", {"service": "web"}, "service: 'web': want NAMESPACE/NAME"),
        ("/v1/services", {"service": "/web"}, "service: '/web': want NAMESPACE/NAME"),
        ("/v1/services", {"service": "default/"}, "service: 'default/': want NAMESPACE/NAME"),
        ("/v1/top", {"service": "default/web"}, "unknown parameter 'service'"),
        ("/v1/top", {"interval": "0"}, "interval: '0': want more than 0 s, and at most 30 s"),
        ("/v1/top", {"interval": "0.0s"}, "interval: '0.0s': want more than 0 s"),
        ("/v1/top", {"interval": "-1"}, "interval: '-1': want a duration from 0"),
        ("/v1/top", {"interval": "30.1"}, "interval: '30.1': want more than 0 s, and at most 30 s"),
        ("/v1/top", {"interval": "1e9"}, "interval: '1e9': want a duration from 0"),
        ("/v1/top", {"interval": "9" * 400}, "want a duration up to"),
        ("/v1/top", {"interval": "nan"}, "interval: 'nan': want a duration from 0"),
        ("/v1/top", {"interval": "x\ny"}, "interval: 'x\\ny': want a duration from 0"),
        ("/v1/connections", {"by": "client"}, "unknown parameter 'by'"),
        ("/v1/connections", {"service": "web"}, "service: 'web': want NAMESPACE/NAME"),
        ("/v1/connections", {"from": "a b"}, "from: 'a b': want an address, or NAMESPACE/NAME"),
        ("/v1/connections", {"older": "soon"}, "older: 'soon': want a duration from 0"),
        ("/v1/connections", {"backend-gone": "x"}, "backend-gone: 'x': want true or false"),
    ],
)
def test_wrong_parameters_are_one_line(node, path, parameters, text):
    with pytest.raises(HttpQueryError) as raised:
        node.ask(path, **parameters)
    assert raised.value.status == 400
    assert text in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("path", ["/v1/services", "/v1/top", "/v1/connections"])
def test_there_is_nothing_below(node, path):
    with pytest.raises(HttpQueryError, match="nothing below") as raised:
        node.map_queries.routes[path](Query(("web",), {}))
    assert raised.value.status == 404


@pytest.mark.parametrize("path", ["/v1/services", "/v1/top", "/v1/connections"])
def test_nothing_is_answered_before_there_are_maps(opened, path):
    early = MapQueries(lambda: None, Changes(NODE), lambda _: Answer(b""), lambda _: NOBODY)
    with pytest.raises(HttpQueryError, match=r"^the agent has no maps yet: try again$") as raised:
        early.routes[path](Query((), {}))
    assert raised.value.status == 503


def test_maps_may_be_replaced(node):
    assert len(services_of(node.ask("/v1/services"))) == 3
    node.maps = memory_maps()
    assert services_of(node.ask("/v1/services")) == []


@pytest.mark.parametrize("path", ["/v1/services", "/v1/top", "/v1/connections"])
def test_the_maps_are_read_for_one_at_a_time(node, monkeypatch, path):
    monkeypatch.setattr(map_queries, "_PATIENCE_SECONDS", 0.01)
    with node.map_queries._reading():
        with pytest.raises(
            HttpQueryError, match=r"^the agent answers others: try again$"
        ) as raised:
            node.ask(path)
        assert raised.value.status == 503
    assert node.ask(path) is not None


def test_others_have_their_turn_while_a_sample_lasts(node, monkeypatch):
    meanwhile = []
    monkeypatch.setattr(map_queries, "_PATIENCE_SECONDS", 0.01)

    def sleep(_):
        meanwhile.append(node.ask("/v1/services"))

    monkeypatch.setattr(map_queries, "time", SimpleNamespace(sleep=sleep))
    node.ask("/v1/top")
    assert meanwhile

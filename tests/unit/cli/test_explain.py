# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from sys import byteorder
from typing import Any

import pytest
from click.testing import CliRunner

from ebpflb.agent import explain as of_agent
from ebpflb.agent.explain import Explaining
from ebpflb.cli import agent_client, main
from ebpflb.cli import explain as command
from ebpflb.cli.agent_client import ask
from ebpflb.cli.explain_words import parse_target
from ebpflb.config.label_selector import parse_label_selector
from ebpflb.config.options import BPFFS_ROOT
from ebpflb.dataplane.explain.names import cluster_ips
from ebpflb.dataplane.layout.enums import AddrFlag, FlowEnd
from ebpflb.dataplane.layout.structs import LbAddr, LbSettings
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.snapshot import read_snapshot
from ebpflb.errors import PinError, QueryError
from ebpflb.model.address import format_address, parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.selection import Selection
from ebpflb.model.service import ServiceName, TrafficPolicy
from ebpflb.observe.flows import queries
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import QueryServer
from ebpflb.web.answers import Answer
from tests.builders import NODE, endpoint, endpoint_slice, port_name, service, service_port
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import pod_of, record
from tests.unit.source.api_server import ApiServer, answer

NODE_IP, VIP = "192.0.2.1", "10.96.0.10"
ENDPOINTS = (
    endpoint("10.1.0.5", pod="default/web-0"),
    endpoint("10.1.0.6", "node-b", pod="default/web-1", ready=False),
)


class World:
    """The maps of a node and an agent that has written them."""

    def __init__(self, socket: Path) -> None:
        self.maps, self.changes, self.socket = memory_maps(), Changes(NODE), socket
        self.sync = Sync(self.maps, quiesce=lambda: None)
        self.sync.load()
        self.sync.set_node_addresses({parse_address(NODE_IP): AddrFlag.LB_ADDR_NODE})
        node4 = LbAddr.from_buffer_copy(parse_address(NODE_IP))
        self.maps["lb_settings"].update(bytes(4), bytes(LbSettings(node4=node4)))
        self.set(service("web"), endpoint_slice("web-1", *ENDPOINTS))

    def set(self, *items):
        for item in items:
            self.changes.set(item)
        self.sync.apply({name: self.changes.plan(name) for name in self.changes.take()})

    def explain(self, *arguments, status, **environment):
        environment = {"EBPFLB_QUERY_SOCKET": str(self.socket), **environment}
        done = CliRunner(env=environment).invoke(main, ["explain", *arguments])
        assert done.exit_code == status, done.output
        return done.output

    def told(self, *arguments, status, **environment):
        return json.loads(self.explain(*arguments, "-o", "json", status=status, **environment))


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Without an agent."""
    world = World(tmp_path / "agent.sock")
    opened = Generation(1, 1, Path("/pins/1-1")), world.maps
    monkeypatch.setattr(command, "open_pins", lambda _: opened)
    for name in set(os.environ) & {"EBPFLB_KUBECONFIG", "KUBERNETES_SERVICE_HOST"}:
        monkeypatch.delenv(name)
    return world


@pytest.fixture
def world(http_server, alone):
    flows = alone.flows = FlowLog(1, alone.changes, lambda: alone.maps, pod_of(alone.changes))
    alone.ask_loop = lambda asked: asked.answer(alone.changes)
    pins = Path(BPFFS_ROOT)
    explaining = Explaining(pins, lambda: alone.maps, lambda asked: alone.ask_loop(asked), flows)
    routes = query_routes(alone.changes, flows)
    server = QueryServer(http_server, alone.socket, {**routes, **explaining.routes})
    server.start()
    yield alone
    server.stop()


def test_without_an_agent_nothing_is_known_of_the_past(alone):
    text = alone.explain("host", "default/web", "--at", "5m", status=3)
    assert "only the agent knows" in text
    assert "agent.sock" in text


def test_an_agent_that_keeps_nothing_says_so(world):
    text = world.explain("host", "default/web", "--at", "5m", status=3)
    assert "keeps nothing of the past: --flow-history-bytes is 0" in text


def test_a_connection_that_works(world):
    text = world.explain("host", "default/web", status=0)
    assert text.startswith("works: translated at the socket hook, to the only possible backend")
    assert "10.1.0.5:8080    100%  ready (default/web-0 on node-a)" in text
    assert "10.1.0.6:8080       -  not ready (default/web-1 on node-b)" in text
    assert text.endswith("Kernel and model agree\n")


@pytest.mark.parametrize(
    "name",
    ["default/web:80", "web.default.svc", "web.default.svc.cluster.local:80", f"{VIP}:80/tcp"],
)
def test_a_destination_by_any_of_its_names(world, name):
    found = world.told("host", name, status=0)
    assert found["target"]["service"] == "default/web"
    assert (found["verdict"], found["agree"]) == ("translated", True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1web:80", "default/1web"),
        ("1-2:80/udp", "default/1-2"),
        ("1web.shop.svc", "shop/1web"),
        ("shop/12", "shop/12"),
        ("12.3.svc.cluster.local:80", "3/12"),
    ],
)
def test_a_name_may_begin_with_a_digit(text, name):
    assert str(parse_target(text).end.name) == name


def test_a_backend_that_did_not_answer_lately_is_reported(world):
    ((number, _),) = world.maps["lb_names"].items()
    to_it: dict[str, Any] = {
        "service": int.from_bytes(number, byteorder),
        "backend_addr": "10.1.0.5",
    }
    world.flows.accept([record(end=FlowEnd.LB_END_NO_ANSWER, **to_it)])
    text = world.explain("host", "default/web", status=1)
    assert text.startswith(
        "likely fails: translated at the socket hook, to the only possible backend"
    )
    assert "did not answer its last connection" in text
    world.flows.accept([record(**to_it)])
    assert world.explain("host", "default/web", status=0).startswith("works: ")


def test_one_of_two_backends_that_did_not_answer_lately_is_named_first(world):
    ready = endpoint("10.1.0.7", "node-b", pod="default/web-2")
    world.set(endpoint_slice("web-1", *ENDPOINTS, ready))
    ((number, _),) = world.maps["lb_names"].items()
    failed = record(
        end=FlowEnd.LB_END_NO_ANSWER,
        service=int.from_bytes(number, byteorder),
        backend_addr="10.1.0.7",
    )
    world.flows.accept([failed])
    found = world.told("host", "default/web", status=5)
    assert (found["outcome"], found["verdict"]) == ("partly", "translated")
    text = world.explain("host", "default/web", status=5)
    said = "works for 1 of 2: default/web-2 (10.1.0.7) did not answer its last connection"
    assert text.splitlines()[0] == said


def test_a_refused_one_fails(world):
    world.set(endpoint_slice("web-1"))
    assert "fails: refused" in world.explain("host", "default/web", status=1)
    assert "Service port has none" in world.explain("host", "default/web", status=1)
    assert world.told("host", f"{VIP}:81", status=1)["kernel"]["reason"] == "unknown_port"


def test_one_that_is_none_of_ours_has_a_status_of_its_own(world):
    found = world.told("host", "127.0.0.1:22", status=4)
    assert (found["verdict"], found["agree"]) == ("passes", True)


def test_a_kernel_that_differs_from_the_model_is_distinguished(world):
    world.changes.set(endpoint_slice("web-1", endpoint("10.1.0.7")))
    world.changes.set(service("web", service_port(internal_policy=TrafficPolicy.LOCAL)))
    found = world.told("host", "default/web", status=3)
    assert "internal traffic policy: kernel Cluster, model Local" in found["differences"]
    assert (
        "clients of this node: backend 10.1.0.7 port 8080 of this node in the model alone"
        in (found["differences"])
    )
    assert "Kernel and model DIFFER" in world.explain("host", "default/web", status=3)


def test_a_frontend_that_only_one_of_them_has_is_a_difference(world):
    for key, _ in list(world.maps["lb_frontends"].items()):
        world.maps["lb_frontends"].delete(key)
    found = world.told("host", f"{VIP}:80", status=3)
    assert found["differences"] == ["the model has this frontend, the kernel has not"]


def test_without_an_agent_the_maps_alone_are_explained(alone):
    text = alone.explain("host", "default/web", status=0)
    assert f"Not compared with the model: no agent answers at {alone.socket}" in " ".join(
        text.split()
    )
    assert "10.1.0.5:8080    100%  on this node" in text


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("host", "default/wep"), 3, "no Service default/wep (did you mean default/web?)"),
        (("host", "default/web:81"), 3, "has no port '81': use default/web:PORT, one of 80"),
        (("host", "default/web/udp"), 3, "has that port for TCP, not for UDP"),
        (("default/web-2", "default/web"), 3, "(did you mean default/web-"),
        (("fd00::1", "default/web"), 3, "SRC has no IPv4 address"),
        (("host", "wep"), 3, "no Service default/wep (did you mean default/web?)"),
        (("host", "web", "-n", "shop"), 3, "no Service shop/web"),
        (("10.1.0", "default/web"), 2, "want an address, `host` or [NAMESPACE/]POD"),
        (("host", "10.1.0:80"), 2, "want ADDRESS:PORT"),
        (("host", "12:80"), 2, "want ADDRESS:PORT"),
        (("host", "a/b/c"), 2, "want ADDRESS:PORT"),
        (("host", VIP), 2, "want a port from 1 to 65535"),
        (("host:0", f"{VIP}:80"), 2, "want a port from 1 to 65535"),
        (("host", f"{VIP}:65536"), 2, "want a port from 1 to 65535"),
    ],
)
def test_what_cannot_be_explained_gives_one_line(world, arguments, status, said):
    text = world.explain(*arguments, status=status)
    assert said in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("given", [("host", "web"), ("host", "web:80", "-n", "default")])
def test_a_name_without_a_namespace_is_in_that_of_n_or_in_default(world, given):
    assert world.told(*given, status=0)["target"]["service"] == "default/web"


def test_the_wide_text_does_not_fold(world):
    text = world.explain("host", "default/web", "-o", "wide", status=0, COLUMNS="40")
    assert max(map(len, text.splitlines())) > 40


def test_a_narrow_terminal_folds_and_has_no_colour_unless_it_wants_it(world):
    text = world.explain("host", "default/web", status=0, COLUMNS="40", NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= 40
    assert "\x1b" not in text


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (answer({"status": {"podIPs": [{"ip": NODE_IP}]}}), "works: translated"),
        (answer({"status": {}}), "pod default/shell has no address yet"),
        (answer({"message": "not found"}, 404), "no pod default/shell"),
        (
            answer({"message": "no"}, 403),
            "; give its address (API server: may not get pods: the ClusterRole lacks the verb get "
            "on pods (no))",
        ),
    ],
)
def test_a_pod_that_is_no_endpoint_is_known_to_the_api_server(world, api, given, said):
    api.answers.append(given)
    status = 0 if given.status == 200 and b"ip" in given.pieces[0] else 3
    text = world.explain("default/shell", "default/web", status=status, EBPFLB_MASTER=api.url)
    assert said in text
    assert api.requests[0].path == "/api/v1/namespaces/default/pods/shell"


def test_a_port_among_several_has_to_be_said(world):
    ports = (
        service_port(port=80, name=port_name("http")),
        service_port(port=443, name=port_name("https")),
    )
    world.set(service("web", *ports))
    assert "has several ports: use default/web:PORT, one of http, https" in world.explain(
        "host", "default/web", status=3
    )
    assert world.told("host", "default/web:https", status=1)["target"]["port"] == 443


def test_cluster_ips_are_found_by_the_name_of_their_service(world):
    ports = service_port(port=80, name=port_name("http")), service_port("10.96.0.11", port=81)
    world.set(service("web", *ports), service("b", service_port("10.96.0.12")))
    snapshot = read_snapshot(world.maps)
    found = cluster_ips(snapshot, ServiceName("default", "web"))
    assert [(format_address(key.address), key.port, name) for key, name in found] == [
        (VIP, 80, "http"),
        ("10.96.0.11", 81, ""),
    ]
    assert cluster_ips(snapshot, ServiceName("default", "wep")) == []


@pytest.mark.parametrize("target", ["default/web", f"{VIP}:80"])
def test_a_service_that_is_left_to_another_proxy(world, target):
    chosen = Selection(parse_label_selector("canary=yes"))
    world.changes.selection = chosen
    world.set(replace(service("web"), labels=(("canary", "no"),)))
    text = world.explain("host", target, status=4)
    assert "default/web is left to kube-proxy: not selected by --service-selector" in text
    assert text.endswith("Kernel and model agree\n")


def test_maps_of_other_pins_are_explained_without_the_agent(world, tmp_path):
    text = world.explain("host", "default/web", "--bpffs-root", str(tmp_path), status=0)
    reason = f"the agent that answers has its pins at {BPFFS_ROOT}"
    assert f"Not compared with the model: {reason}" in " ".join(text.split())


@pytest.mark.parametrize("target", ["default/web", f"{VIP}:80"])
def test_an_agent_whose_loop_is_busy_explains_its_maps(world, monkeypatch, target):
    monkeypatch.setattr(queries, "PATIENCE_SECONDS", 0.01)
    asked: list[object] = []
    world.ask_loop = asked.append
    found = world.told("host", target, status=0)
    assert (found["agree"], found["model"]["unasked"]) == (None, "the agent is busy: try again")
    assert len(asked) == 1


def test_what_is_written_meanwhile_is_no_difference(world):
    changes = [endpoint_slice("web-1", endpoint("10.1.0.7")), endpoint_slice("web-1", *ENDPOINTS)]

    def ask_loop(asked):
        """Answers after a change that the maps had not when they were read."""
        if changes:
            world.set(changes.pop())
        asked.answer(world.changes)

    world.set(endpoint_slice("web-1"))
    world.ask_loop = ask_loop
    found = world.told("host", f"{VIP}:80", status=0)
    assert (found["agree"], changes) == (True, [])
    assert [each["address"] for each in found["kernel"]["backends"]] == ["10.1.0.7"]


def test_an_agent_explains_one_connection_at_a_time(world, monkeypatch):
    monkeypatch.setattr(of_agent, "_PATIENCE_SECONDS", 0.01)
    refused = []

    def ask_loop(asked):
        with pytest.raises(QueryError, match="explains another connection") as caught:
            ask(world.socket, "explain", to=VIP, port="80")
        refused.append(caught)
        asked.answer(world.changes)

    world.ask_loop = ask_loop
    assert world.told("host", f"{VIP}:80", status=0)["agree"]
    assert refused


@pytest.mark.parametrize(
    ("where", "given", "said"),
    [
        ("explain", {"to": VIP}, "want a number from 1 to 65535"),
        ("explain", {"to": f"{VIP}:80"}, "is not an IP address"),
        ("explain", {"to": "default/web", "from": "10.1.0"}, "is not an IP address"),
        ("explain", {"to": "default/web", "protocol": "tcp"}, "unknown protocol 'tcp'"),
        ("explain", {"to": "default/web", "source_port": "65536"}, "Expected `int` <= 65535"),
        ("explain", {"to": "default/web", "since": "5m"}, "unknown field `since`"),
        ("explain", {}, "missing required field `to`"),
        ("explain/web", {"to": "default/web"}, "has nothing below it"),
    ],
)
def test_a_query_that_is_no_question_is_refused(world, where, given, said):
    with pytest.raises(QueryError, match=said):
        ask(world.socket, *where.split("/"), **given)


@pytest.fixture
def listening(alone):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(alone.socket))
        made.listen()
        yield made


def test_an_agent_that_hangs_is_asked_once(alone, listening, api, monkeypatch):
    monkeypatch.setattr(agent_client, "_ANSWER_SECONDS", 0.1)
    api.answers.append(answer({"status": {"podIPs": [{"ip": NODE_IP}]}}))
    found = alone.told("default/shell", "default/web", status=0, EBPFLB_MASTER=api.url)
    assert found["model"]["unasked"].endswith("the agent has not answered for 0.1 s")
    listening.accept()[0].close()
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.accept()


@pytest.mark.parametrize("said", [b"[]", b"{}", b'{"note": 1}', b"{"])
def test_what_is_no_answer_of_an_agent_is_left(alone, http_server, said):
    server = QueryServer(http_server, alone.socket, {"/v1/explain": lambda _: Answer(said)})
    server.start()
    try:
        text = alone.explain("host", "default/web", status=0)
    finally:
        server.stop()
    assert f"{alone.socket}: not an ebpflb agent" in " ".join(text.split())


def test_where_nothing_is_loaded_no_pod_is_looked_for(alone, monkeypatch):
    def none(_):
        raise PinError("nothing is loaded")

    monkeypatch.setattr(command, "open_pins", none)
    assert "Error: nothing is loaded" in alone.explain("default/shell", "default/web", status=3)

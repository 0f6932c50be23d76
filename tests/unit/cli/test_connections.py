# SPDX-License-Identifier: Apache-2.0
import json
from functools import partial
from pathlib import Path

import pytest

from ebpflb.cli import agent_client, main
from ebpflb.cli import connections as command
from ebpflb.dataplane.kernel.sock_diag import TcpProgress
from ebpflb.dataplane.layout.enums import CtState, Hook
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.view import connections as view
from tests.unit.cli.invoked import check_narrow, output_of
from tests.unit.dataplane.view.opened import (
    ESTABLISHED,
    FIN_WAIT2,
    GONE,
    NOW,
    POD,
    SERVING,
    VIP,
    Opened,
)

run = partial(output_of, "connections")
HOUR = 3600


@pytest.fixture
def opened(monkeypatch):
    made = Opened()
    generation = Generation(1, 1, Path("/pins/1-1"))
    monkeypatch.setattr(command, "open_pins", lambda _: (generation, made.maps))
    monkeypatch.setattr(view, "open_sockets", lambda: made.sockets)
    at_that_time = partial(view.open_connections, now=lambda: NOW)
    monkeypatch.setattr(view, "open_connections", at_that_time)
    return made


def found(*arguments):
    return [json.loads(line) for line in run(*arguments, "-o", "jsonl").splitlines()]


def test_a_socket_is_its_clients_and_tells_how_it_goes(opened):
    opened.tcp(1, age=10)
    (each,) = found()
    assert each == {
        "path": "socket",
        "protocol": "TCP",
        "state": "established",
        "client": {"address": POD, "port": 4001},
        "frontend": {"address": VIP, "port": 80},
        "service": {"namespace": "default", "name": "web", "port": "http"},
        "backend": {"address": SERVING, "port": 8080},
        "age": 10.0,
        "idle": 4.0,
        "bytes": {"original": 5, "reply": 6},
    }


def test_a_flow_at_tc_has_the_last_packet_of_either_direction(opened):
    opened.flow()
    (each,) = found()
    assert (each["path"], each["state"]) == ("tc", "established")
    assert each["client"] == {"address": "198.51.100.7", "port": 1234}
    assert (each["age"], each["idle"]) == (20, 3)
    assert each["bytes"] == {"original": 100, "reply": 2000}


def test_a_udp_socket_has_an_owner_and_nothing_else(opened):
    opened.udp(3)
    (each,) = found()
    assert (each["protocol"], each["state"]) == ("UDP", "bound")
    assert each["client"] == {"address": POD, "port": 5000}
    assert "age" not in each


def test_what_has_ended_or_belongs_to_another_nat_is_not_open(opened):
    opened.flow(CtState.LB_CT_CLOSED)
    assert found() == []
    opened.flow(hook=Hook.LB_HOOK_RESERVED)
    assert found() == []


def test_a_connection_to_a_backend_that_is_no_endpoint_any_more_is_marked(opened):
    opened.tcp(1)
    opened.tcp(2, GONE)
    assert [each.get("removed", False) for each in found("--sort", "idle")] == [False, True]
    assert [each["backend"]["address"] for each in found("--backend-gone")] == [GONE]
    assert f"{GONE}:8080 (gone)" in run()


def test_a_socket_that_was_closed_meanwhile_has_no_client(opened):
    opened.tcp(1, progress=None)
    (each,) = found()
    assert "client" not in each
    assert run().splitlines()[1].split()[:2] == ["opening", "?"]


def test_a_socket_that_has_sent_its_last_is_closing(opened):
    opened.tcp(1, progress=TcpProgress(FIN_WAIT2, 1, 1, 1))
    assert [each["state"] for each in found()] == ["closing"]


def test_a_connection_is_idle_for_no_longer_than_it_is_old(opened):
    opened.tcp(1, age=2, progress=TcpProgress(ESTABLISHED, 10**6, 0, 0))
    (each,) = found()
    assert each["idle"] == each["age"]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 3),
        (("--service", "web"), 3),
        (("-n", "shop"), 0),
        (("--older", "1h"), 1),
        (("--from", POD), 2),
        (("--from", "198.51.100.7"), 1),
        (("--from", "default/client"), 0),
    ],
)
def test_options_select(opened, options, count):
    opened.tcp(1)
    opened.tcp(2, age=2 * HOUR)
    opened.flow()
    assert len(found(*options)) == count


def test_a_service_that_is_not_served_is_an_error(opened):
    opened.tcp(1)
    said = run("--service", "default/wep", status=1)
    assert said == "Error: no Service default/wep is served (did you mean default/web?)\n"


@pytest.mark.parametrize(
    ("sort", "first"), [("age", 2), ("idle", 1), ("bytes", 3)], ids=["age", "idle", "bytes"]
)
def test_they_come_in_the_order_that_was_asked_for(opened, sort, first):
    opened.tcp(1, age=HOUR, progress=TcpProgress(ESTABLISHED, 30, 1, 1))
    opened.tcp(2, age=2 * HOUR, progress=TcpProgress(ESTABLISHED, 3, 1, 1))
    opened.tcp(3, age=10, progress=TcpProgress(ESTABLISHED, 3, 10, 10))
    assert found("--sort", sort)[0]["client"]["port"] == 4000 + first


def test_they_are_counted_by_client_the_most_first(opened):
    opened.flow()
    opened.tcp(1)
    opened.tcp(2, GONE)
    assert json.loads(run("--by", "client", "-o", "json")) == [
        {"name": POD, "connections": 2, "removed": 1},
        {"name": "198.51.100.7", "connections": 1, "removed": 0},
    ]
    titles, most, _ = run("--by", "client").splitlines()
    assert titles.split() == ["CLIENT", "CONNECTIONS", "GONE"]
    assert most.split() == [POD, "2", "1"]


def test_the_agent_names_pods_and_workloads(opened, monkeypatch):
    opened.tcp(1)
    opened.tcp(2)
    opened.flow()
    answer = {
        "pods": {"shop/curl-x1": [POD], "default/web-0": [SERVING]},
        "workloads": {"shop/curl-x1": "Deployment/curl"},
    }
    monkeypatch.setattr(agent_client, "ask", lambda *_: answer)
    of_pod = found("--from", "shop/curl-x1", "--query-socket", "/agent.sock")
    assert [each["client"]["workload"] for each in of_pod] == ["Deployment/curl"] * 2
    assert {each["backend"]["pod"] for each in of_pod} == {"default/web-0"}
    counts = json.loads(run("--by", "workload", "--query-socket", "/agent.sock", "-o", "json"))
    assert [(each["name"], each["connections"]) for each in counts] == [
        ("shop/Deployment/curl", 2),
        ("198.51.100.7", 1),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--older", "soon"), "--older"),
        (("--from", "a b"), "want an address or [NAMESPACE/]POD"),
        (("--by", "node"), "--by"),
        (("-n", "shop", "-A"), "cannot be used together"),
    ],
)
def test_wrong_values_are_usage_errors(opened, options, said):
    assert said in run(*options, status=2)


def test_sockets_that_cannot_be_listed_are_one_line(opened, monkeypatch):
    def refused():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(view, "open_sockets", refused)
    said = run(status=1)
    assert said == "Error: cannot list the sockets of this machine: Operation not permitted\n"


def test_a_service_that_is_gone_is_its_address(opened):
    opened.service += 1
    opened.tcp(1)
    (each,) = found()
    assert "service" not in each
    assert f"{VIP}:80/TCP" in run()
    assert json.loads(run("--by", "service", "-o", "json"))[0]["name"] == VIP


def test_on_a_narrow_terminal_all_of_it_is_shown(opened, screen):
    opened.tcp(1, GONE)
    opened.flow()
    check_narrow(screen, main, "connections")

# SPDX-License-Identifier: Apache-2.0
import socket
from pathlib import Path

import pytest
from msgspec import convert

from ebpflb.cli import doctor
from ebpflb.cli.agent_client import Page
from ebpflb.cli.doctor import (
    check_agent,
    check_dsr,
    check_health_port,
    check_query_socket,
    check_triggers,
    check_xdp,
)
from ebpflb.cli.status import Status
from ebpflb.dataplane.doctor.finding import Finding, Severity
from ebpflb.model.agent_report import AgentReport
from tests.unit.agent_reports import agent_report

DOWN = "agent down, serving the state of 05:48"
NO_KEY = {"keys": 0, "key_trouble": ""}
SUM = 'kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"}'


def reported(**changed: object) -> AgentReport:
    return convert(agent_report(**changed), AgentReport)


def found(**changed):
    return [(str(e.severity), e.check, e.where) for e in check_agent(reported(**changed))]


def test_an_agent_in_sync_is_well():
    assert found() == [("ok", "agent", "")]


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (Status("agent down", DOWN, False, [], None), DOWN),
        (Status("not served", "not served", False, [], None), "no agent answers there"),
    ],
)
def test_no_agent_is_a_warning_in_the_words_of_status(monkeypatch, node, what):
    monkeypatch.setattr(doctor, "look", lambda *_: node)
    for address, where in (("127.0.0.1:10249", "127.0.0.1:10249"), ("", "(no address)")):
        (only,) = doctor.of_agent(address, Path("/x"), {})
        assert (str(only.severity), only.where, only.what) == ("warning", where, what)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"healthy": False, "in_sync": False}, ("error", "agent", "")),
        ({"in_sync": False}, ("warning", "agent", "")),
        ({"attach_errors": {"eth0": "busy"}}, ("error", "agent", "eth0")),
        ({"refused": {"default/web": "full"}}, ("error", "agent", "default/web")),
        ({"source_errors": {"/m/a.yaml": "broken"}}, ("warning", "agent", "/m/a.yaml")),
        ({"source_errors": {"api": "refused"}}, ("warning", "api", "")),
        ({"health_check_errors": {"default/lb": "in use"}}, ("warning", "agent", "default/lb")),
        ({"conflicts": ["b does not get it"]}, ("warning", "addresses", "")),
    ],
)
def test_what_it_cannot_serve_is_trouble(changed, expected):
    assert found(**changed) == [expected]


def test_another_version_is_a_note():
    assert found(version="0.0.1") == [("ok", "agent", ""), ("note", "agent", "")]


@pytest.mark.parametrize(
    ("page", "address", "expected"),
    [
        (Page(200, b""), "0.0.0.0:10256", []),
        (None, "", []),
        (None, "0.0.0.0:10256", ["warning"]),
        (Page(503, b""), "0.0.0.0:10256", ["note"]),
    ],
)
def test_the_health_port_is_asked_where_there_is_one(page, address, expected):
    assert [str(each.severity) for each in check_health_port(page, address)] == expected


def test_the_query_socket_is_asked_where_there_is_one(tmp_path):
    path = tmp_path / "agent.sock"

    def found(place=str(path)):
        return [str(each.severity) for each in check_query_socket(place)]

    assert (found(""), found()) == ([], ["note"])
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert found() == ["warning"]
        server.listen()
        assert found() == []


@pytest.mark.parametrize(("total", "count"), [("0.5", 0), ("-3.25", 1), ("-1e-05", 1)])
def test_changes_from_the_future_are_reported(total, count):
    assert len(list(check_triggers(f"# HELP x\n{SUM} {total}\nother 1\n"))) == count


def test_a_family_without_direct_server_return_is_a_warning():
    tunnels = {"services": "all", "port": 6089, "peers": 4, "pods": 7, "without": {}, **NO_KEY}
    (fine,) = check_dsr(reported(tunnels=tunnels))
    assert (fine.severity, fine.what) == (Severity.OK, "tunnels lead to 7 pods on other nodes")
    (found,) = check_dsr(reported(tunnels={**tunnels, "without": {"IPv4": "no address"}}))
    assert (found.severity, found.where) == (Severity.WARNING, "IPv4")
    assert found.what == "is masqueraded: no address"
    assert "--node-ip" in found.advice
    assert list(check_dsr(reported(tunnels=None))) == []


def test_keys_that_cannot_be_read_are_a_warning():
    ((severity, what),) = dsr(key_trouble="keys: no such file")
    assert severity == "warning"
    assert what == "cannot read the keys of tunnels, which stay as they were: keys: no such file"


def test_xdp_is_reported_for_each_uplink():
    native = {"name": "eth0", "mode": "native", "why": ""}
    none = {"name": "eth1", "mode": "", "why": "its driver does not support XDP"}
    assert list(check_xdp(reported(xdp=[native, none]))) == [
        Finding(Severity.NOTE, "xdp", "eth0", "lb_xdp is attached (native)"),
        Finding(
            Severity.NOTE, "xdp", "eth1", "no XDP, tc serves it: its driver does not support XDP"
        ),
    ]
    assert list(check_xdp(reported())) == []


TUNNELS = {"services": "all", "port": 6089, "peers": 4, "pods": 7, "without": {}, **NO_KEY}


def silent(node: str, family: str = "IPv4", why: str = "no answer") -> dict[str, str]:
    return {"node": node, "family": family, "why": why}


def dsr(*unreachable: dict[str, str], **tunnels: object) -> list[tuple[str, str]]:
    peers = {"asked": 6, "reachable": 6 - len(unreachable), "unreachable": [*unreachable]}
    found = check_dsr(reported(tunnels={**TUNNELS, **tunnels}, dsr_peers=peers))
    assert all(each.is_trouble is bool(each.advice) for each in found)
    found = check_dsr(reported(tunnels={**TUNNELS, **tunnels}, dsr_peers=peers))
    return [(str(each.severity), each.what) for each in found]


def test_nodes_that_answer_are_well():
    assert dsr() == [("ok", "tunnels lead to 7 pods on other nodes")]


def test_nodes_that_do_not_answer_are_named_once_for_each_reason():
    assert dsr(silent("a"), silent("a", "IPv6"), silent("z", "IPv6", "Network is unreachable")) == [
        (
            "warning",
            "1 node does not answer on UDP port 6089: a (IPv4, IPv6); "
            "their pods get SNAT instead of DSR",
        ),
        (
            "warning",
            "1 node does not answer on UDP port 6089 (Network is unreachable): z (IPv6); "
            "their pods get SNAT instead of DSR",
        ),
    ]
    assert dsr(*map(silent, "bcde")) == [
        (
            "warning",
            "4 nodes do not answer on UDP port 6089: b (IPv4), c (IPv4), d (IPv4) and 1 more; "
            "their pods get SNAT instead of DSR",
        ),
    ]


def test_a_family_without_tunnels_is_reported_once():
    found = dsr(silent("a"), silent("b", "IPv6"), without={"IPv4": "no address"})
    assert [what.partition(":")[0] for _, what in found] == [
        "is masqueraded",
        "1 node does not answer on UDP port 6089",
    ]

# SPDX-License-Identifier: Apache-2.0
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec import convert

from ebpflb.cli import INTERRUPTED, agent_client, main
from ebpflb.cli import status as command
from ebpflb.cli.agent_client import node_in_words
from ebpflb.cli.status import Loaded
from ebpflb.dataplane.attach import strays
from ebpflb.dataplane.attach.attachments import Attachment
from ebpflb.dataplane.view.dump import MapFill
from ebpflb.errors import PinError
from ebpflb.model.agent_report import AgentReport
from ebpflb.observe.http.server import TcpPort, metrics_routes, quick
from ebpflb.web.answers import Answer
from tests.ports import free_port
from tests.unit.agent_reports import agent_report
from tests.unit.cli.invoked import check_narrow, interrupt_after, output_of

NO_KEY = {"keys": 0, "key_trouble": ""}
REPORT = agent_report(version="1.2.3")
LOADED = Loaded(
    generation="/pins/1-4",
    source_hash="0123456789abcdef",
    last_sync="2026-01-02T05:48:11.000000Z",
    hooks=[
        Attachment("connect4", "cgroup 5", "lb_connect4", True),
        Attachment("tcx ingress", "eth0", "lb_host_ingress", True),
        Attachment("tcx egress", "", "lb_host_egress", False),
    ],
    missing_hooks=[],
    maps=[MapFill("lb_descs", "array", 5, 16, 1024), MapFill("lb_slots", "array", 4, 8, 2048)],
    flows={"lb_conntrack": 9, "lb_ct_short": 0, "lb_sockets": 1},
    dropped={"no_route": 3, "rewrite": 0},
)


@pytest.fixture
def node(http_server, monkeypatch):
    """A node with an agent; what differs is put over it."""

    def make(loaded=LOADED, **report):
        def look(_):
            if isinstance(loaded, PinError):
                raise loaded
            return loaded

        monkeypatch.setattr(command, "_loaded", look)
        monkeypatch.setattr(strays, "find_strays", lambda *_: [])
        routes = metrics_routes(lambda: Answer(b""), lambda: {**REPORT, **report})
        servers.append(TcpPort(http_server, ("127.0.0.1", 0), quick(routes)))
        servers[-1].start()
        monkeypatch.setenv("EBPFLB_METRICS_BIND_ADDRESS", f"127.0.0.1:{servers[-1].number}")

    servers: list[TcpPort] = []
    yield make
    for server in servers:
        server.stop()


run = partial(output_of, "status")


def test_a_node_that_is_served(node):
    node()
    output = run()
    assert output.startswith("Node is served\n\nAgent 1.2.3, node node-a, pid 7: in sync\n")
    assert "Loaded from /pins/1-4, source 0123456789ab\n" in output
    assert "tcx ingress  eth0      lb_host_ingress\n" in output
    assert "tcx egress   (gone)    lb_host_egress\n" in output
    fullest = "2 maps, 3.0 KiB; the fullest, lb_slots, has 4 of 8 elements (-o wide lists all)"
    assert f"\n{fullest}\n" in output
    assert "established           9\n" in output
    assert output.endswith("no_route              3\n")


def test_every_map_is_listed_where_there_is_room(node):
    node()
    output = run("-o", "wide")
    assert "lb_descs     5   16  1.0 KiB\nlb_slots     4    8  2.0 KiB\n" in output
    assert "the fullest" not in output


def test_json_has_it_all(node):
    node()
    shown = json.loads(run("-o", "json"))
    assert (shown["healthy"], shown["problems"]) == (True, [])
    assert shown["agent"] == REPORT
    assert shown["loaded"]["hooks"][0]["place"] == "cgroup 5"
    assert shown["loaded"]["dropped"] == {"no_route": 3, "rewrite": 0}


def test_what_cannot_be_read_or_does_not_fit_is_shown(node):
    node(
        source_errors={"/m/a": "/m/a: document 1: broken"},
        refused={"default/big": "map lb_slots: full"},
        conflicts=["b does not get it"],
        in_sync=False,
    )
    output = run()
    assert "cannot read: /m/a: document 1: broken" in output
    assert "does not fit: default/big: map lb_slots: full" in output
    assert "conflict: b does not get it" in output
    assert "pid 7: not in sync" in output


def test_an_agent_in_sync_with_what_is_old_says_so(node):
    node(source_errors={"api": "cannot read services"}, unread_seconds=61)
    assert "pid 7: in sync with what it could read 61 s ago" in run()


def test_an_agent_that_serves_what_was_kept_says_of_when_that_is(node):
    node(stale_since="2026-11-24T14:03:00.000000Z")
    said = "serving the state of 2026-11-24T14:03:00.000000Z: the API server has not answered"
    assert f"\n  {said} since the start\n" in run()


def test_rights_that_the_agent_could_not_give_up_are_shown(node):
    node(rights_kept={"files": "the kernel has no Landlock"})
    assert "\n  could not give up files: the kernel has no Landlock\n" in run()


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ({"healthy": False}, "changes do not reach the kernel"),
        ({"attach_errors": {"eth0": "device 2: busy"}}, "eth0: device 2: busy"),
    ],
)
def test_an_agent_in_trouble_is_status_1(node, report, problem):
    node(**report)
    assert problem in run(status=1)


@pytest.mark.parametrize(
    ("report", "first"),
    [
        ({"healthy": False}, "Node is behind, serving the state of 2026-01-02 05:48"),
        ({"attach_errors": {"eth0": "busy"}}, "Node is NOT served as it should be"),
        ({"healthy": False, "attach_errors": {"eth0": "busy"}}, "Node is NOT served as it should"),
    ],
)
def test_a_node_is_not_served_only_if_hooks_or_maps_are_missing(node, report, first):
    node(**report)
    assert run(status=1).startswith(first)


def test_a_hook_that_is_missing_or_runs_something_else_is_status_1(node):
    old = Attachment("tcx ingress", "eth1", "lb_host_ingress", False)
    missing = ["connect4", "connect6"]
    node(replace(LOADED, hooks=[old], missing_hooks=missing, dropped={"no_route": 0}))
    output = run(status=1)
    assert "socket hooks not attached: connect4, connect6" in output
    assert "outdated program at tcx ingress eth1" in output
    assert output.endswith("nothing               0\n")


def test_nothing_loaded_is_status_1_and_the_agent_is_shown_all_the_same(node):
    node(PinError("nothing is loaded at /x"), last_sync=None, in_sync=False)
    output = run(status=1)
    assert "nothing is loaded at /x" in output
    assert "last sync never" in output


def test_without_an_agent_the_rest_is_shown(node, monkeypatch):
    node()
    port = free_port()
    output = run("--metrics-bind-address", f"127.0.0.1:{port}", status=1)
    assert output.startswith("Node: agent down, serving the state of 2026-01-02 05:48\n")
    assert f"no agent answers at 127.0.0.1:{port}" in output
    assert "Loaded from /pins/1-4" in output
    assert "no agent answers at (no address)" in run("--metrics-bind-address", "", status=1)


def test_without_an_agent_a_node_with_a_hook_missing_is_not_served(node):
    node(replace(LOADED, missing_hooks=["connect4"]))
    arguments = "--metrics-bind-address", f"127.0.0.1:{free_port()}"
    assert run(*arguments, status=1).startswith("Node is NOT served as it should be\n")
    assert json.loads(run(*arguments, "-o", "json", status=1))["state"] == "not served"


def test_without_an_agent_a_node_where_nothing_is_loaded_is_not_served(node):
    node(PinError("nothing is loaded at /x"))
    arguments = "--metrics-bind-address", f"127.0.0.1:{free_port()}"
    assert run(*arguments, status=1).startswith("Node is NOT served as it should be\n")


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("served", "served"),
        ("not served", "not served"),
        ("agent down", "agent down, serving the state of 05:48"),
        ("behind", "behind, serving the state of 05:48"),
    ],
)
def test_the_state_that_is_served_has_a_time_of_day(state, shown):
    of, now = "2026-11-24T05:48:11.1Z", "2026-11-24T23:00:00.0Z"
    assert node_in_words(state, of, now) == shown
    assert node_in_words(state, "", now) == state
    yesterday = shown.replace("05:48", "2026-11-24 05:48")
    assert node_in_words(state, of, "2026-11-25T00:00:00.0Z") == yesterday


def test_something_else_on_the_port_is_no_agent(http_server):
    routes = {"/status": lambda: Answer(b"<html>")}
    port = TcpPort(http_server, ("127.0.0.1", 0), quick(routes))
    port.start()
    assert agent_client.ask_agent(f"127.0.0.1:{port.number}") is None
    port.stop()


def test_devices_and_the_way_of_masqueraded_packets_are_shown(node):
    pods = [{"name": f"veth{n}", "kind": "workload", "why": "a veth"} for n in range(3)]
    uplink = {"name": "eth0", "kind": "host", "why": "the default route"}
    chosen = {"way": "stack", "why": "auto: Calico enforces NetworkPolicy here (device cali*)"}
    node(forwarding=chosen, devices=[*pods, uplink], left_out={"lo": "loopback"})
    output = run()
    assert (
        f"  masqueraded packets are routed by the kernel, through FORWARD; {chosen['why']}"
        in output
    )
    assert "eth0                 host      the default route\n" in output
    assert "3: veth0, veth1 ...  workload  a veth\n" in output


def test_what_becomes_of_unknown_connections_is_shown(node):
    node(unknown_connections={"way": "passed", "why": "kube-proxy's rules are here: a chain"})
    line = "  unknown connections to Services are passed; kube-proxy's rules are here: a chain\n"
    assert line in run()


def test_direct_server_return_is_shown_where_it_is_on(node):
    tunnels = {
        "services": "annotated",
        "port": 6089,
        "peers": 4,
        "pods": 7,
        "without": {},
        **NO_KEY,
    }
    node(tunnels=tunnels)
    line = (
        "  direct server return for annotated Services on UDP port 6089: tunnels to 7 pods, from 4 "
        "addresses of other nodes\n"
    )
    assert line in run()
    node(tunnels={**tunnels, "without": {"IPv6": "no address"}})
    assert f"{line}  no direct server return over IPv6: no address\n" in run()
    node(tunnels={**tunnels, "keys": 2, "key_trouble": "keys: Permission denied"})
    assert (
        f"{line}  tunnels have a key; 2 accepted\n"
        "  cannot read the keys of tunnels: keys: Permission denied\n"
    ) in run()
    node(tunnels=None)
    assert "direct server return" not in run()


def test_an_agent_that_listens_everywhere_is_asked_here(node):
    node()
    port = os.environ["EBPFLB_METRICS_BIND_ADDRESS"].rpartition(":")[2]
    assert agent_client.ask_agent(f"0.0.0.0:{port}") == convert(REPORT, AgentReport)


def test_a_wrong_address_is_one_line():
    assert run("--metrics-bind-address", "x", status=2).startswith("Error: --metrics-bind-address")


def test_missing_pins_are_found_missing(tmp_path):
    with pytest.raises(PinError, match="nothing is loaded"):
        command._loaded(Path(tmp_path))


def test_what_is_left_to_another_proxy_is_reported(node):
    node(selectors={"service-selector": "canary=yes"}, services_left_out=12)
    output = run()
    assert "  only Services selected by --service-selector 'canary=yes'\n" in output
    assert "  12 other Services are left to kube-proxy\n" in output


def test_nodes_that_take_no_part_in_direct_server_return_are_reported(node):
    tunnels = {"services": "all", "port": 6089, "peers": 4, "pods": 7, "without": {}, **NO_KEY}
    silent = [{"node": "b", "family": each, "why": "no answer"} for each in ("IPv4", "IPv6")]
    peers = {"asked": 4, "reachable": 2, "unreachable": silent}
    node(tunnels=tunnels, dsr_peers=peers)
    assert (
        "  2 of 4 nodes answer there (a node counts once for each family)\n"
        "  SNAT instead of direct server return to b (IPv4, IPv6): no answer\n"
    ) in run()
    node(tunnels=tunnels, dsr_peers={"asked": 0, "reachable": 0, "unreachable": []})
    assert "answer there" not in run()


def test_it_is_looked_again_until_an_interrupt_whatever_is_found(node, monkeypatch):
    node()
    interrupt_after(2, monkeypatch, between=lambda: node(PinError("nothing is loaded")))
    found = [json.loads(line) for line in run("-w", "-o", "jsonl", status=INTERRUPTED).splitlines()]
    assert [each["problems"] for each in found] == [[], ["nothing is loaded"]]


def test_on_a_narrow_terminal_all_of_it_is_shown(node, screen):
    why = "the route is by another device than the address, as policy routing says"
    uplink = {"name": "enp3s0f0np0", "kind": "host", "why": why}
    node(attach_errors={"eth0": f"cannot attach: {why}"}, devices=[uplink])
    check_narrow(screen, main, "status")


@pytest.mark.parametrize("odd", [{"pid": "7"}, {"refused": []}, {"in_sync": None}])
def test_an_odd_answer_of_the_agent_is_one_line(node, odd):
    node(**odd)
    told = run(status=1)
    assert told.startswith("Error: 127.0.0.1:")
    assert told.count("\n") == 1
    assert "the agent's /status is not this version's" in told

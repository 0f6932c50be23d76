# SPDX-License-Identifier: Apache-2.0
import json
import os
import time
from functools import partial

import pytest

from ebpflb.dataplane.kube_proxy import removal, tools
from ebpflb.dataplane.kube_proxy.removal import Removed, RemovedRules
from ebpflb.observe.http.server import TcpPort, metrics_routes, quick
from ebpflb.web.answers import Answer
from tests.unit.agent_reports import agent_report
from tests.unit.cli.invoked import output_of

SERVING = agent_report()
REMOVED = Removed(
    iptables=(RemovedRules("iptables-nft", "nat", ("KUBE-SERVICES",), ("-A OUTPUT -j X",)),),
    kept=("iptables-nft table nat: KUBE-MARK-MASQ, which CNI-DN-1 jumps to",),
    unseen=("ipset is not installed",),
    warnings=("the policy of FORWARD is DROP",),
)


class Machine:
    """What the command sees of a node; `calls`: each removal, with whether it was dry."""

    def __init__(self, monkeypatch):
        self.calls: list[bool] = []
        self.pids: list[int] = []
        self.removed = REMOVED
        self.report = dict(SERVING)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(tools, "running_kube_proxies", lambda: self.pids)
        monkeypatch.setattr(removal, "remove_kube_proxy", self._remove)

    def _remove(self, dry_run):
        self.calls.append(dry_run)
        return self.removed


@pytest.fixture
def machine(http_server, monkeypatch):
    """A node with an agent that serves everything, and no kube-proxy."""
    machine = Machine(monkeypatch)
    routes = metrics_routes(lambda: Answer(b""), lambda: machine.report)
    port = TcpPort(http_server, ("127.0.0.1", 0), quick(routes))
    port.start()
    monkeypatch.setenv("EBPFLB_METRICS_BIND_ADDRESS", f"127.0.0.1:{port.number}")
    yield machine
    port.stop()


run = partial(output_of, "takeover")


def test_what_was_removed_is_said(machine):
    assert run() == (
        "removed iptables-nft table nat: 1 chains, 1 jumps to them\n"
        "kept iptables-nft table nat: KUBE-MARK-MASQ, which CNI-DN-1 jumps to\n"
        "not looked at: ipset is not installed\n"
        "warning: the policy of FORWARD is DROP\n"
    )
    assert machine.calls == [False]


def test_the_second_time_there_is_nothing_to_remove(machine):
    machine.removed = Removed()
    assert run() == "nothing to remove\n"


def test_json_has_it_all(machine):
    shown = json.loads(run("-o", "json"))
    assert (shown["dry_run"], shown["obstacles"]) == (False, [])
    assert shown["removed"]["iptables"] == [
        {
            "tool": "iptables-nft",
            "table": "nat",
            "chains": ["KUBE-SERVICES"],
            "jumps": ["-A OUTPUT -j X"],
        }
    ]


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"in_sync": False}, "the agent is not in sync"),
        ({"services": 0}, "the agent serves no Service"),
        (
            {"refused": {"default/big": "map full"}},
            "the agent does not serve default/big: map full",
        ),
        ({"attach_errors": {"eth0": "busy"}}, "the agent is not attached to eth0: busy"),
        ({"source_errors": {"a.yaml": "broken"}}, "the agent cannot read a.yaml: broken"),
    ],
)
def test_it_is_refused_in_one_line_unless_the_agent_serves_everything(machine, report, reason):
    machine.report |= report
    line = f"Error: not taken over: {reason} (--force overrides this)\n"
    assert run(status=1) == line
    assert machine.calls == []
    assert run("--force").startswith("removed ")


def test_it_is_refused_without_an_agent(machine):
    arguments = ("--metrics-bind-address", "127.0.0.1:1")
    assert "no agent answers at 127.0.0.1:1 (" in run(*arguments, status=1)
    assert "no agent answers at (no address)" in run("--metrics-bind-address", "", status=1)
    assert machine.calls == []
    run("--force", *arguments)
    assert machine.calls == [False]


def test_it_is_refused_while_kube_proxy_runs_and_its_ids_are_named(machine):
    machine.pids = [30, 200]
    assert "kube-proxy is running here (pid 30, 200) and would write" in run(status=1)
    assert machine.calls == []
    run("--force")
    assert machine.calls == [False]


def test_a_dry_run_is_never_refused_and_says_what_stands_in_the_way(machine):
    machine.pids = [30]
    machine.report |= {"in_sync": False}
    output = run("--dry-run")
    assert output.startswith("would remove iptables-nft table nat: 1 chains")
    assert "would be refused: the agent is not in sync\n" in output
    assert "would be refused: kube-proxy is running here (pid 30)" in output
    assert machine.calls == [True]


def test_it_waits_until_nothing_stands_in_the_way(machine, monkeypatch):
    machine.report |= {"in_sync": False}
    machine.pids = [30]
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        machine.report |= {"in_sync": len(pauses) > 1}
        machine.pids = [] if len(pauses) > 2 else [30]

    monkeypatch.setattr(time, "sleep", pause)
    run("--wait", "60")
    assert (len(pauses), machine.calls) == (3, [False])


def test_it_waits_no_longer_than_asked(machine):
    machine.report |= {"in_sync": False}
    assert "not in sync" in run("--wait", "0.01", status=1)
    assert machine.calls == []


def test_it_needs_root(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    line = "Error: `ebpflb takeover` needs root: run it as root or with sudo\n"
    assert run(status=1) == line
    assert run("--dry-run", status=1) == line
    assert machine.calls == []


def test_a_wrong_time_is_a_wrong_command_line(machine):
    assert "--wait" in run("--wait", "-1", status=2)


def test_what_selectors_leave_out_needs_the_rules(machine):
    machine.report |= {"selectors": {"service-selector": "canary=yes"}}
    line = "kube-proxy must serve what --service-selector 'canary=yes' leaves out"
    assert line in run(status=1)
    assert machine.calls == []

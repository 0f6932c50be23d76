# SPDX-License-Identifier: Apache-2.0
import json
from functools import partial

import pytest

from ebpflb.cli import doctor as command
from ebpflb.cli import main
from ebpflb.dataplane.doctor import checks
from ebpflb.dataplane.doctor.finding import Finding, Severity
from ebpflb.errors import AttachError, PinError
from tests.unit.cli.invoked import check_narrow, output_of

GOOD = Finding(Severity.OK, "maps", "", "have room")
BAD = Finding(Severity.ERROR, "sysctls", "x", "is 0", "set it")


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node without an agent with these findings; returns the places that were examined."""
    asked = []

    def make(*findings):
        def examine(where):
            asked.append(where)
            return list(findings)

        monkeypatch.setattr(checks, "examine", examine)
        return asked

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(command, "of_agent", lambda *_: [])
    monkeypatch.setenv("EBPFLB_CGROUP_ROOT", str(tmp_path))
    monkeypatch.setenv("EBPFLB_METRICS_BIND_ADDRESS", "")
    return make


run = partial(output_of, "doctor")


def test_without_trouble_the_status_is_0(node):
    node(GOOD, Finding(Severity.NOTE, "clock", "", "slow"))
    assert run() == (
        "ok       maps        have room\nnote     clock       slow\n\n0 errors, 0 warnings\n"
    )


def test_trouble_is_one_line_and_status_1(node):
    node(GOOD, BAD)
    output = run(status=1)
    assert "error    sysctls     x: is 0 -> set it\n" in output
    assert output.endswith("\n1 error, 0 warnings\n")


def test_json_has_it_all(node):
    node(BAD)
    shown = json.loads(run("-o", "json", status=1))
    assert shown["healthy"] is False
    assert shown["findings"] == [
        {"severity": "error", "check": "sysctls", "where": "x", "what": "is 0", "advice": "set it"}
    ]
    lines = run("-o", "jsonl", status=1).splitlines()
    assert [json.loads(line) for line in lines] == shown["findings"]


def test_without_an_agent_the_environment_says_which_devices(node, monkeypatch, tmp_path):
    asked = node()
    monkeypatch.setenv("EBPFLB_HOST_DEVICES", "up0,up1")
    run("--bpffs-root", str(tmp_path))
    assert asked[0].devices.host_devices == ("up0", "up1")
    assert asked[0].node_ports == (30000, 32767)
    assert (asked[0].pins, asked[0].cgroup) == (tmp_path, tmp_path)


def test_what_the_agent_was_given_goes_before_the_environment(node, monkeypatch, tmp_path):
    asked = node()
    node_ports = {"service-node-port-range": "20000-22767"}
    told = {"host-devices": ["eth7"], "cgroup-root": "/proc", **node_ports}
    monkeypatch.setattr(command, "fetch_json", lambda *_: {"ebpflb": told})
    run()
    run("--cgroup-root", str(tmp_path))
    assert asked[0].devices.host_devices == ("eth7",)
    assert asked[0].node_ports == (20000, 22767)
    assert [str(each.cgroup) for each in asked] == ["/proc", str(tmp_path)]


def test_without_root_it_is_one_line(node, monkeypatch):
    node()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run(status=1) == "Error: `ebpflb doctor` needs root: run it as root or with sudo\n"


@pytest.mark.parametrize("error", [AttachError("device 2:\n busy"), OSError(1, "not permitted")])
def test_a_check_that_fails_is_a_finding(error):
    def fail():
        raise error

    (found,) = checks._checked("devices", fail)
    assert found.is_trouble
    assert found.what.startswith("could not be checked: ")
    assert "\n" not in found.what


def test_pins_that_cannot_be_read_keep_no_other_check_away(monkeypatch, tmp_path):
    def refuse(_):
        raise PinError("no")

    monkeypatch.setattr(checks, "_load", refuse)
    devices = command.Devices((), (), (), "")
    first, *others = checks._check_hooks(
        checks.NodePaths(tmp_path, tmp_path, devices, (30000, 32767))
    )
    assert (first.check, first.what) == ("pins", "could not be checked: no")
    assert {each.check for each in others} == {"sysctls", "forward"}


def test_on_a_narrow_terminal_all_of_it_is_shown(node, screen):
    node(Finding(Severity.ERROR, "sysctls", "net.ipv4.x", "is 0, which drops " * 5, "set it"))
    check_narrow(screen, main, "doctor")

# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.doctor.checks import (
    covered,
    inside,
    judge_pods,
    judge_processes,
    outsiders,
)
from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.enums import DeviceKind, NetnsFlag
from tests.memory_maps import memory_maps

NAMESPACE = os.stat("/proc/self/ns/net").st_ino


@pytest.fixture
def proc(tmp_path):
    """Three processes of our namespace, the last of them a kernel thread."""
    for pid, command in ((5, "sh"), (7, "agent"), (9, "")):
        place = tmp_path / str(pid)
        (place / "ns").mkdir(parents=True)
        (place / "ns/net").symlink_to("/proc/self/ns/net")
        (place / "cmdline").write_text(command)
        (place / "comm").write_text(f"{command}\n")
    (tmp_path / "11").mkdir()
    (tmp_path / "net").mkdir()
    return tmp_path


def workload(ifindex):
    kind = DeviceKind.LB_DEVICE_WORKLOAD
    return Device(ifindex, f"veth{ifindex}", kind, True, True, netnsid=ifindex)


def test_processes_outside_the_cgroup_are_found_in_our_namespaces_alone(proc):
    assert outsiders({7}, {NAMESPACE}, proc) == ["sh (5)"]
    assert outsiders(set(), {NAMESPACE}, proc) == ["sh (5)", "agent (7)"]
    assert outsiders(set(), {1}, proc) == []


def test_a_cgroup_has_the_processes_of_those_below(tmp_path):
    (tmp_path / "pod").mkdir()
    (tmp_path / "cgroup.procs").write_text("5\n7\n")
    (tmp_path / "pod/cgroup.procs").write_text("9\n")
    assert inside(tmp_path) == {5, 7, 9}


def test_processes_outside_are_one_warning_with_examples():
    (found,) = judge_processes(Path("/c"), ["a (1)", "b (2)", "c (3)", "d (4)"])
    assert found.is_trouble
    assert found.what == "4 processes are outside cgroup /c: a (1), b (2), c (3) and 1 more"
    assert list(judge_processes(Path("/c"), [])) == []


def test_the_maps_say_which_devices_are_covered():
    maps = memory_maps()
    for cookie, flags in ((1, NetnsFlag.LB_NETNS_COVERED), (2, NetnsFlag.LB_NETNS_HOST)):
        key = bytes(structs.u64(cookie))
        maps["lb_netns"].update(key, bytes(structs.LbNetns(flags=flags, ifindex=10 + cookie)))
    assert covered(maps["lb_netns"]) == {11}


def test_pods_that_the_agent_does_not_know_are_a_note():
    devices = [workload(each) for each in (1, 2, 3, 4)]
    behind = {1: 100, 2: 100, 3: 300}
    (found,) = judge_pods(devices, behind, {1})
    assert (str(found.severity), found.where) == ("note", "veth3, veth4")
    assert list(judge_pods(devices[:2], behind, {1})) == []

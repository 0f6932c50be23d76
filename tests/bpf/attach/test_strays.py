# SPDX-License-Identifier: Apache-2.0
"""Two sets of ebpflb's programs on one node are detected and reported; one of them is removed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebpflb.agent.dataplane.second_set import SecondSet
from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.attach.strays import Stray, find_strays, own_programs, served_cgroups
from ebpflb.dataplane.kernel.libc import mount_bpffs
from ebpflb.errors import AttachError, ConfigError
from ebpflb.lab.namespaces import detach
from tests.bpf.attach.network import Network, entered, ip
from tests.bpf.attach.sets import WAYS, attach_set

SOCKETS = {(name.removeprefix("lb_"), "") for name in CGROUP_HOOKS}
DEVICES = ("eth0", "veth1")

AgentSet = Callable[..., Path]


@pytest.fixture
def attach(network: Network, bpffs: Path, cgroup: Path) -> AgentSet:
    """Attaches a set of programs with its own pins; returns their directory."""
    ip("link add eth0 index 70 type veth peer name far\naddr add 192.0.2.1/24 dev eth0")
    network.add_pod("veth1")

    def attach(name: str, way: str = "tcx", **options: Any) -> Path:
        attach_set(bpffs / name, cgroup, way, **options)
        return bpffs / name

    return attach


@pytest.fixture
def alone(cgroup: Path) -> Iterator[Callable[[Path], SecondSet]]:
    """How an agent with these pins treats a second set."""
    made: list[SecondSet] = []

    def alone(root: Path) -> SecondSet:
        made.append(SecondSet(root, cgroup))
        return made[-1]

    yield alone
    for each in made:
        each.close()


def strays(root: Path) -> list[Stray]:
    return find_strays(root, served_cgroups(root))


def places(found: list[Stray], *, first: bool | None = None) -> set[tuple[str, str]]:
    return {(each.hook, each.device) for each in found if first in (None, each.first)}


def at_devices(way: str) -> set[tuple[str, str]]:
    return {(f"{way} {side}", name) for side in ("ingress", "egress") for name in DEVICES}


def test_a_set_with_other_pins_is_found_at_every_hook_with_its_order(attach):
    theirs, ours = attach("theirs", xdp="generic"), attach("ours")
    found = strays(ours)
    assert places(found) == SOCKETS | at_devices("tcx") | {("XDP", "eth0")}
    # A later tcx program runs first at ingress and last at egress.
    egress = {("tcx egress", name) for name in DEVICES}
    assert places(found, first=True) == SOCKETS | egress | {("XDP", "eth0")}
    ingress = {("tcx ingress", name) for name in DEVICES}
    assert places(strays(theirs), first=True) == ingress
    assert places(strays(theirs)) == SOCKETS | at_devices("tcx")


def test_a_set_at_clsact_is_found_too(attach):
    ours = attach("ours")
    root = attach("theirs", "clsact").parent / "none"
    assert places(strays(ours)) == SOCKETS | at_devices("clsact")
    assert places(find_strays(root, ())) == at_devices("clsact") | at_devices("tcx")


def test_programs_of_others_are_no_strays_whatever_their_names(attach):
    attach("theirs", xdp="generic", map_name="settings")
    assert strays(attach("ours")) == []


def test_the_same_device_number_elsewhere_is_not_ours(attach, network):
    theirs, elsewhere = attach("theirs"), network.add()
    with entered(elsewhere):
        ip("link add eth0 index 70 type veth peer name far")
        assert places(find_strays(theirs.parent / "ours", ())) == set()


def test_programs_that_only_a_link_still_holds_are_ours(attach):
    ours = attach("ours", xdp="generic")
    before = own_programs(ours)
    for pin in (ours / "1-1" / "progs").iterdir():
        pin.unlink()
    assert len(before) > len(own_programs(ours)) > len(CGROUP_HOOKS)
    assert strays(ours) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_set_whose_agent_has_ended_is_taken_off(attach, alone, caplog, way):
    attach("theirs", xdp="generic")
    ours = attach("ours", way)
    second = alone(ours)
    second.refuse_other_agent()
    assert second.take_off(()) == (True, {})
    assert strays(ours) == []
    assert second.take_off(()) == (False, {})
    (line,) = caplog.messages
    assert line.startswith("another set of ebpflb's programs is at 10 socket hooks and 2 devices")


def test_a_set_whose_file_system_is_mounted_elsewhere_only_is_taken_off(attach, alone, bpffs):
    attach("ours", xdp="generic")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as elsewhere:
        assert elsewhere.stdout
        elsewhere.stdout.readline()
        try:
            detach(bpffs)
            mount_bpffs(bpffs, "ebpflb-test")
            second = alone(attach("ours"))
            assert places(strays(bpffs / "ours")) == SOCKETS | at_devices("tcx") | {("XDP", "eth0")}
            assert second.take_off(()) == (True, {})
            assert strays(bpffs / "ours") == []
        finally:
            elsewhere.kill()


def test_nothing_is_taken_off_while_another_agent_runs(attach, alone):
    theirs, ours = attach("theirs"), attach("ours")
    first, second = alone(theirs), alone(ours)
    with pytest.raises(AttachError) as caught:
        second.refuse_other_agent()
    assert str(caught.value).startswith("another agent serves cgroup ")
    assert "and this network namespace, with other pins: stop it first" in str(caught.value)
    found = strays(ours)
    assert second.take_off(()) == (False, {})
    assert strays(ours) == found
    first.close()
    second.refuse_other_agent()
    assert second.take_off(()) == (True, {})


def test_without_the_right_to_look_nothing_is_found(attach, cgroup):
    attach("theirs")
    script = """
import sys
from pathlib import Path
from ebpflb.agent.dataplane.second_set import SecondSet
print(SecondSet(*map(Path, sys.argv[1:])).take_off(()))
"""
    without = ["setpriv", "--bounding-set", "-sys_admin"]
    done = subprocess.run(
        [*without, sys.executable, "-c", script, str(attach("ours")), str(cgroup)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "(False, {})\n"


def test_the_remains_of_an_interrupted_start_are_no_error(attach):
    ours = attach("ours")
    (ours / "1-2").mkdir()
    assert strays(ours) == []


def test_a_lock_without_another_set_refuses_no_agent(attach, alone):
    ours = attach("ours")
    alone(ours)
    alone(ours).refuse_other_agent()


def test_the_lock_is_seen_through_another_mount_of_the_cgroup(attach, alone, cgroup, tmp_path):
    alone(attach("ours"))
    script = """
import sys
from pathlib import Path
from ebpflb.dataplane.attach.hook_lock import HookLock
print(HookLock(Path(sys.argv[1])).held_by_others())
"""
    shell = 'mount -t cgroup2 none "$0" && exec "$@"'
    inside = [sys.executable, "-c", script, str(tmp_path / cgroup.name)]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", shell, str(tmp_path), *inside],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"cgroup {tmp_path}/{cgroup.name}\n"


def test_a_root_that_is_no_cgroup_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=f"--cgroup-root {tmp_path}: not a cgroup v2 directory"):
        SecondSet(tmp_path, tmp_path)

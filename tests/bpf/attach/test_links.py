# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator
from errno import ENODEV
from itertools import cycle
from pathlib import Path

import pytest

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, Change, TcDirection
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachType
from ebpflb.dataplane.layout.programs import CGROUP_PROGRAMS
from ebpflb.errors import AttachError
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network, Wire, ip

CONNECT4 = AttachType.CGROUP_INET4_CONNECT
INGRESS, EGRESS = TcDirection


@pytest.fixture
def refuse() -> Iterator[links.LoadedProgram]:
    program = tiny.load_connect4(tiny.REFUSE)
    yield program
    program.close()


@pytest.fixture
def allow() -> Iterator[links.LoadedProgram]:
    program = tiny.load_connect4(tiny.ALLOW)
    yield program
    program.close()


@pytest.fixture
def wire(network: Network) -> Iterator[Wire]:
    wire = Wire(network, "veth0")
    yield wire
    wire.close()


def test_a_socket_hook_runs_until_it_is_detached(bpffs, cgroup, refuse):
    pin = bpffs / "lb_connect4"
    assert links.attach_cgroup(pin, cgroup, CONNECT4, refuse) is Change.ATTACHED
    assert not tiny.may_connect(cgroup)
    assert links.detach(pin)
    assert tiny.may_connect(cgroup)
    assert not links.detach(pin)


def test_a_hook_is_detached_although_another_process_holds_the_link(bpffs, cgroup, refuse):
    links.attach_cgroup(bpffs / "lb_connect4", cgroup, CONNECT4, refuse)
    held = libbpf.obj_get(bpffs / "lb_connect4")
    assert links.detach(bpffs / "lb_connect4")
    assert tiny.may_connect(cgroup)
    os.close(held)


def test_attaching_again_changes_nothing(bpffs, cgroup, refuse):
    pin = bpffs / "lb_connect4"
    links.attach_cgroup(pin, cgroup, CONNECT4, refuse)
    before = tiny.link_of(pin)
    assert links.attach_cgroup(pin, cgroup, CONNECT4, refuse) is Change.KEPT
    assert tiny.link_of(pin) == before


def test_another_program_takes_over_the_same_link(bpffs, cgroup, refuse, allow):
    pin = bpffs / "lb_connect4"
    links.attach_cgroup(pin, cgroup, CONNECT4, refuse)
    link, _ = tiny.link_of(pin)
    assert links.attach_cgroup(pin, cgroup, CONNECT4, allow) is Change.REPLACED
    assert tiny.link_of(pin) == (link, allow.identity)
    assert tiny.may_connect(cgroup)


def test_a_pin_of_another_cgroup_is_moved(bpffs, cgroup, refuse):
    pin = bpffs / "lb_connect4"
    with tiny.own_cgroup("b") as other:
        links.attach_cgroup(pin, other, CONNECT4, refuse)
        assert links.attach_cgroup(pin, cgroup, CONNECT4, refuse) is Change.ATTACHED
        assert tiny.may_connect(other)
        assert not tiny.may_connect(cgroup)
    assert [path.name for path in bpffs.glob("lb_*")] == ["lb_connect4"]


def test_a_pin_of_a_cgroup_that_is_gone_is_replaced(bpffs, cgroup, refuse):
    pin = bpffs / "lb_connect4"
    links.attach_cgroup(pin, cgroup, CONNECT4, refuse)
    cgroup.rmdir()
    cgroup.mkdir()
    assert tiny.may_connect(cgroup)
    assert links.attach_cgroup(pin, cgroup, CONNECT4, refuse) is Change.ATTACHED
    assert not tiny.may_connect(cgroup)


def test_what_an_interrupted_move_left_is_cleaned_up(bpffs, cgroup, refuse, allow):
    pin, unfinished = bpffs / "lb_connect4", bpffs / "lb_connect4_new"
    links.attach_cgroup(pin, cgroup, CONNECT4, allow)
    links.attach_cgroup(unfinished, cgroup, CONNECT4, refuse)
    assert not tiny.may_connect(cgroup)
    links.attach_cgroup(pin, cgroup, CONNECT4, allow)
    assert not unfinished.exists()
    links.attach_cgroup(unfinished, cgroup, CONNECT4, refuse)
    links.detach(pin)
    assert not unfinished.exists()


def test_every_socket_hook_can_be_attached(bpffs, cgroup):
    assert CGROUP_HOOKS.keys() == CGROUP_PROGRAMS.keys()
    for name, attach_type in CGROUP_HOOKS.items():
        program = tiny.load(tiny.ALLOW, CGROUP_PROGRAMS[name].type, attach_type)
        assert links.attach_cgroup(bpffs / name, cgroup, attach_type, program) is Change.ATTACHED
        program.close()


def test_a_directory_that_is_no_cgroup_is_refused(bpffs, tmp_path, allow):
    with pytest.raises(AttachError, match=f"{tmp_path}: not a cgroup v2 directory"):
        links.attach_cgroup(bpffs / "x", tmp_path, CONNECT4, allow)
    with pytest.raises(AttachError, match="cgroup /nowhere, CGROUP_INET4_CONNECT: No such file"):
        links.attach_cgroup(bpffs / "x", Path("/nowhere"), CONNECT4, allow)


def test_a_tcx_program_runs_in_its_direction_only(bpffs, wire, drop):
    assert links.attach_tcx(bpffs / "in", wire.ifindex, INGRESS, drop) is Change.ATTACHED
    assert wire.is_closed_in()
    assert wire.goes_out()
    assert links.attach_tcx(bpffs / "out", wire.ifindex, EGRESS, drop) is Change.ATTACHED
    assert links.detach(bpffs / "in")
    assert wire.comes_in()
    assert wire.is_closed_out()


def test_replacing_a_tcx_program_leaves_no_moment_without_one(bpffs, wire, drop):
    other = tiny.load(tiny.DROP)
    links.attach_tcx(bpffs / "in", wire.ifindex, INGRESS, drop)
    with wire.flood() as sent:
        for number, program in enumerate(cycle((other, drop))):
            change = links.attach_tcx(bpffs / "in", wire.ifindex, INGRESS, program)
            assert change is Change.REPLACED
            if min(number, len(sent)) > 500:
                break
    other.close()
    assert not wire.has_come_in()


def test_the_program_is_first_at_tcx_ingress(bpffs, wire, drop, accept):
    links.attach_tcx(bpffs / "theirs", wire.ifindex, INGRESS, drop)
    links.attach_tcx(bpffs / "ours", wire.ifindex, INGRESS, accept)
    assert wire.comes_in()


def test_the_program_is_last_at_tcx_egress(bpffs, wire, drop, accept):
    links.attach_tcx(bpffs / "theirs", wire.ifindex, EGRESS, accept)
    links.attach_tcx(bpffs / "ours", wire.ifindex, EGRESS, drop)
    assert wire.goes_out()


def test_a_pin_of_a_device_that_is_gone_is_replaced(bpffs, network, wire, drop):
    pin = bpffs / "in"
    ip("link add gone index 77 type veth peer name peer")
    links.attach_tcx(pin, 77, INGRESS, drop)
    ip("link del gone\nlink add again index 77 type veth peer name peer")
    assert links.attach_tcx(pin, 77, INGRESS, drop) is Change.ATTACHED
    assert links.attach_tcx(pin, 77, INGRESS, drop) is Change.KEPT
    assert links.attach_tcx(pin, wire.ifindex, INGRESS, drop) is Change.ATTACHED
    assert wire.is_closed_in()
    ip("link del veth0")
    assert links.detach(pin)


def test_a_device_that_is_not_there_is_named(bpffs, network, drop):
    with pytest.raises(AttachError, match=r"device 4711, tcx ingress: .*No such device") as caught:
        links.attach_tcx(bpffs / "in", 4711, INGRESS, drop)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == ENODEV

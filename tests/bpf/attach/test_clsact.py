# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from errno import ENODEV
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.dataplane.attach.links import Change, LoadedProgram, TcDirection
from ebpflb.dataplane.attach.tc import Clsact
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.errors import AttachError
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network, Wire, ip, tc

INGRESS, EGRESS = TcDirection


class Bench(NamedTuple):
    """A device to try filters on."""

    clsact: Clsact
    wire: Wire
    marks: Path

    def attach(self, direction: TcDirection, program: LoadedProgram) -> Change:
        return self.clsact.attach(self.wire.ifindex, direction, program)

    def detach(self, direction: TcDirection) -> bool:
        return self.clsact.detach(self.wire.ifindex, direction)

    def has_qdisc(self) -> bool:
        return self.wire.ifindex in self.clsact.qdiscs()


@pytest.fixture
def bench(network: Network, tmp_path: Path) -> Iterator[Bench]:
    wire = Wire(network, "veth0")
    with Rtnetlink() as netlink:
        yield Bench(Clsact(netlink, tmp_path), wire, tmp_path)
    wire.close()


def add_foreign(program: LoadedProgram, bpffs: Path, options: str) -> None:
    """Attach another product's program with tc(8)."""
    pin = bpffs / f"theirs{program.identity}"
    libbpf.obj_pin(program.fd, pin)
    tc(f"filter add dev veth0 {options} bpf pinned {pin} direct-action")


def test_a_filter_runs_in_its_direction_until_it_is_detached(bench, drop):
    assert bench.attach(INGRESS, drop) is Change.ATTACHED
    assert bench.wire.is_closed_in()
    assert bench.wire.goes_out()
    assert bench.attach(EGRESS, drop) is Change.ATTACHED
    assert bench.wire.is_closed_out()
    assert bench.detach(INGRESS)
    assert not bench.detach(INGRESS)
    assert bench.wire.comes_in()
    assert bench.wire.is_closed_out()


def test_attaching_again_changes_nothing(bench, drop):
    bench.attach(INGRESS, drop)
    assert bench.attach(INGRESS, drop) is Change.KEPT
    assert len(bench.clsact.filters(bench.wire.ifindex, INGRESS)) == 1


def test_replacing_a_filter_leaves_no_moment_without_one(bench, drop):
    other = tiny.load(tiny.DROP)
    bench.attach(INGRESS, drop)
    with bench.wire.flood() as sent:
        for number, program in enumerate(cycle((other, drop))):
            assert bench.attach(INGRESS, program) is Change.REPLACED
            if min(number, len(sent)) > 500:
                break
    other.close()
    assert len(bench.clsact.filters(bench.wire.ifindex, INGRESS)) == 1
    assert not bench.wire.has_come_in()


def test_tc_shows_the_name(bench):
    program = tiny.load(tiny.NEXT, name="lb_pod_ingress")
    bench.attach(INGRESS, program)
    program.close()
    shown = tc("filter show dev veth0 ingress")
    assert "pref 1 bpf chain 0 handle 0x6c62 ebpflb:lb_pod_ingress direct-action" in shown


def test_the_filter_is_first_at_ingress_and_last_at_egress(bench, bpffs, drop, accept):
    tc("qdisc add dev veth0 clsact")
    add_foreign(drop, bpffs, "ingress prio 1")
    theirs = tiny.load(tiny.PASS)
    add_foreign(theirs, bpffs, "egress")
    theirs.close()
    bench.attach(INGRESS, accept)
    bench.attach(EGRESS, drop)
    assert bench.wire.comes_in()
    assert bench.wire.goes_out()


def test_programs_of_others_are_seen_and_left_alone(bench, bpffs, drop):
    ifindex = bench.wire.ifindex
    bench.attach(EGRESS, drop)
    assert not bench.clsact.is_foreign(ifindex)
    theirs = tiny.load(tiny.NEXT)
    add_foreign(theirs, bpffs, "egress prio 1 handle 0x6c62")
    assert bench.clsact.is_foreign(ifindex)
    assert bench.detach(EGRESS)
    (left,) = bench.clsact.filters(ifindex, EGRESS)
    assert left.program == theirs.identity
    assert bench.has_qdisc()
    theirs.close()


def test_a_filter_of_others_in_our_place_is_not_replaced(bench, bpffs, drop):
    tc("qdisc add dev veth0 clsact")
    theirs = tiny.load(tiny.NEXT)
    add_foreign(theirs, bpffs, "egress prio 65534 handle 0x6c62")
    assert bench.clsact.is_foreign(bench.wire.ifindex)
    assert not bench.detach(EGRESS)
    with pytest.raises(AttachError, match="clsact egress: File exists"):
        bench.attach(EGRESS, drop)
    (left,) = bench.clsact.filters(bench.wire.ifindex, EGRESS)
    assert left.program == theirs.identity
    theirs.close()


def test_our_qdisc_goes_with_the_last_filter(bench, drop):
    bench.attach(INGRESS, drop)
    bench.attach(EGRESS, drop)
    assert bench.clsact.marked() == {bench.wire.ifindex}
    bench.detach(INGRESS)
    assert bench.has_qdisc()
    bench.detach(EGRESS)
    assert not bench.has_qdisc()
    assert not bench.clsact.marked()


def test_a_qdisc_of_others_stays(bench, drop):
    tc("qdisc add dev veth0 clsact")
    bench.attach(INGRESS, drop)
    assert bench.detach(INGRESS)
    assert bench.has_qdisc()


def test_our_qdisc_stays_while_others_use_it(bench, drop):
    bench.attach(INGRESS, drop)
    tc("filter add dev veth0 egress prio 7 protocol all u32 match u32 0 0")
    bench.detach(INGRESS)
    assert bench.has_qdisc()
    tc("filter del dev veth0 egress prio 7")
    bench.detach(INGRESS)
    assert not bench.has_qdisc()


def test_an_ingress_qdisc_is_no_place_for_egress(bench, drop):
    tc("qdisc add dev veth0 ingress")
    with pytest.raises(AttachError, match="has the qdisc 'ingress' where clsact belongs"):
        bench.attach(EGRESS, drop)
    assert bench.wire.comes_in()


def test_a_filter_of_another_kind_in_our_place_is_explained(bench, drop):
    tc("qdisc add dev veth0 clsact")
    tc("filter add dev veth0 ingress prio 1 protocol all u32 match u32 0 0")
    with pytest.raises(AttachError, match="Specified filter kind does not match existing one"):
        bench.attach(INGRESS, drop)


def test_a_device_that_is_gone_is_reported_with_its_errno(bench, drop):
    ip("link del veth0")
    with pytest.raises(AttachError, match="clsact ingress: No such device") as caught:
        bench.attach(INGRESS, drop)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == ENODEV


def test_the_mark_of_a_device_can_be_forgotten(bench, drop):
    bench.attach(INGRESS, drop)
    for _ in range(2):
        bench.clsact.forget(bench.wire.ifindex)
        assert not bench.clsact.marked()
    bench.detach(INGRESS)
    assert bench.has_qdisc()

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change, LoadedProgram
from ebpflb.dataplane.attach.tc import AttachMode, TcHooks
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.errors import AttachError
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network, Wire, ip, tc

POD_INGRESS = "lb_pod_ingress"


class Bench(NamedTuple):
    """A workload device, and programs that drop every packet."""

    netlink: Rtnetlink
    pins: Path
    wire: Wire
    device: Device
    programs: Mapping[str, LoadedProgram]

    def hooks(self, mode: AttachMode = "auto", *, has_tcx: bool = True) -> TcHooks:
        return TcHooks(self.netlink, self.pins, mode, has_tcx=has_tcx)

    def attach(self, mode: AttachMode = "auto", *, has_tcx: bool = True) -> Change:
        return self.hooks(mode, has_tcx=has_tcx).attach(self.device, self.programs)

    def attach_broken(self, mode: AttachMode) -> None:
        """Attach an ingress program that no device accepts."""
        socket_program = tiny.load_connect4(tiny.ALLOW)
        broken = {**self.programs, POD_INGRESS: socket_program}
        try:
            self.hooks(mode).attach(self.device, broken)
        finally:
            socket_program.close()

    def pinned(self) -> list[str]:
        return sorted(path.name for path in self.pins.iterdir())

    def is_closed(self) -> bool:
        return self.wire.is_closed_in() and self.wire.is_closed_out()

    def is_open(self) -> bool:
        return self.wire.comes_in() and self.wire.goes_out()


@pytest.fixture
def bench(network: Network, bpffs: Path, drop: LoadedProgram) -> Iterator[Bench]:
    wire = Wire(network, "veth0")
    kind = DeviceKind.LB_DEVICE_WORKLOAD
    device = Device(wire.ifindex, "veth0", kind, ethernet=True, up=True)
    pins = bpffs / "links"
    pins.mkdir()
    with Rtnetlink() as netlink:
        yield Bench(
            netlink, pins, wire, device, dict.fromkeys((POD_INGRESS, "lb_pod_egress"), drop)
        )
    wire.close()


def add_foreign(bpffs: Path) -> None:
    theirs = tiny.load(tiny.NEXT)
    libbpf.obj_pin(theirs.fd, bpffs / "theirs")
    theirs.close()
    tc("qdisc add dev veth0 clsact")
    tc(f"filter add dev veth0 egress bpf pinned {bpffs}/theirs direct-action")


both_ways = pytest.mark.parametrize("way", ["tcx", "clsact"])


@both_ways
def test_both_programs_run_until_they_are_detached(bench, way):
    assert bench.attach(way) is Change.ATTACHED
    assert bench.is_closed()
    assert bench.attach(way) is Change.KEPT
    assert bench.hooks().present() == {bench.wire.ifindex}
    assert bench.hooks().detach(bench.wire.ifindex)
    assert bench.is_open()
    assert not bench.hooks().detach(bench.wire.ifindex)
    assert bench.hooks().present() == set()


def test_tcx_is_taken_where_the_kernel_has_it(bench):
    bench.attach()
    assert bench.pinned() == [f"tcx_{side}_{bench.wire.ifindex}" for side in ("egress", "ingress")]
    assert "clsact" not in tc("qdisc show dev veth0")


def test_clsact_is_taken_where_the_kernel_lacks_tcx(bench):
    bench.attach(has_tcx=False)
    assert bench.pinned() == [f"clsact_{bench.wire.ifindex}"]
    assert "clsact" in tc("qdisc show dev veth0")


def test_a_device_moves_to_clsact_when_others_come_and_back_when_they_go(bench, bpffs):
    bench.attach()
    add_foreign(bpffs)
    assert bench.attach() is Change.ATTACHED
    assert bench.pinned() == []
    assert "ebpflb:lb_tiny" in tc("filter show dev veth0 egress")
    assert bench.attach() is Change.KEPT
    tc("filter del dev veth0 egress pref 49152")
    assert bench.attach() is Change.ATTACHED
    assert "ebpflb:lb_tiny" not in tc("filter show dev veth0 egress")
    assert len(bench.pinned()) == 2
    assert bench.is_closed()


@pytest.mark.parametrize("ways", [("tcx", "clsact"), ("clsact", "tcx")])
def test_a_device_that_moves_is_never_without_programs(bench, ways):
    bench.attach(ways[0])
    with bench.wire.flood() as sent:
        for number, way in enumerate(cycle(reversed(ways))):
            assert bench.attach(way) is Change.ATTACHED
            if number > 20 and len(sent) > 500:
                break
    assert not bench.wire.has_come_in()


@both_ways
def test_one_direction_alone_is_taken_back(bench, way):
    with pytest.raises(AttachError, match=f"{way} ingress"):
        bench.attach_broken(way)
    assert bench.is_open()
    assert bench.pinned() == []
    assert "clsact" not in tc("qdisc show dev veth0")


@both_ways
def test_a_failed_replacement_leaves_what_was_there(bench, way):
    bench.attach(way)
    with pytest.raises(AttachError):
        bench.attach_broken(way)
    assert bench.is_closed()


def test_the_mark_of_a_device_that_is_gone_goes(bench):
    bench.attach("clsact")
    ip("link del veth0")
    assert bench.pinned() == [f"clsact_{bench.wire.ifindex}"]
    assert bench.hooks().present() == set()
    assert bench.pinned() == []


def test_the_pins_of_a_device_that_is_gone_are_found_and_removed(bench):
    bench.attach("tcx")
    ip("link del veth0")
    assert bench.hooks().present() == {bench.wire.ifindex}
    assert bench.hooks().detach(bench.wire.ifindex)
    assert bench.pinned() == []

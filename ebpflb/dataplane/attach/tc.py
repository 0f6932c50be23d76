# SPDX-License-Identifier: Apache-2.0
"""Our programs at ingress and egress of devices, by tcx or by clsact, and the change between them.

Where the choice is ours ("auto"), tcx is taken if the kernel has it, except on a device that
carries BPF programs of somebody else at clsact: tcx runs before clsact in both directions, so only
at clsact can ours be last at egress.

When a device moves from one to the other, the new programs are attached before the old ones go, so
for a moment a packet meets ours twice. That does no harm: what the first has translated is
addressed to a backend, which is no frontend, and a translated reply has left the tuple under which
its flow is known; the second passes it on. With neither, packets of established flows would leave
untranslated, and their peers would answer them with a reset.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.clsact import Clsact
from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change, LoadedProgram, TcDirection
from ebpflb.dataplane.kernel.netlink import Rtnetlink
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.errors import AttachError

AttachMode = Literal["auto", "tcx", "clsact"]

# What reverses comes before what translates: nothing is translated that could not be reversed.
ATTACH_ORDER = (TcDirection.EGRESS, TcDirection.INGRESS)

TCX_PIN = re.compile(r"tcx_(ingress|egress)_([0-9]+)")


class DevicePrograms(NamedTuple):
    """What runs on one kind of device."""

    ingress: str
    egress: str

    def at(self, direction: TcDirection) -> str:
        """The program's name for one direction."""
        return self.ingress if direction == TcDirection.INGRESS else self.egress


POD_PROGRAMS = DevicePrograms("lb_pod_ingress", "lb_pod_egress")
HOST_PROGRAMS = DevicePrograms("lb_host_ingress", "lb_host_egress")
L3_PROGRAMS = DevicePrograms("lb_l3_ingress", "lb_l3_egress")


def programs_of(device: Device) -> DevicePrograms:
    """The programs that belong on a device."""
    if device.kind == DeviceKind.LB_DEVICE_WORKLOAD:
        return POD_PROGRAMS
    return HOST_PROGRAMS if device.ethernet else L3_PROGRAMS


def choose(mode: AttachMode, *, has_tcx: bool, is_foreign: bool) -> AttachMode:
    """tcx or clsact for one device; `is_foreign`: others have BPF programs at its clsact."""
    if mode != "auto":
        return mode
    return "tcx" if has_tcx and not is_foreign else "clsact"


class TcHooks:
    """The devices of one network namespace for the length of one pass: it opens a socket."""

    def __init__(self, netlink: Rtnetlink, pins: Path, mode: AttachMode, *, has_tcx: bool) -> None:
        """`pins` is the directory of pinned links."""
        self._clsact = Clsact(netlink, pins)
        self._qdiscs = set(self._clsact.qdiscs())
        self._pins = pins
        self._mode = mode
        self._has_tcx = has_tcx

    def attach(self, device: Device, programs: Mapping[str, LoadedProgram]) -> Change:
        """Have both programs of a device run; KEPT when nothing had to be done.

        AttachError names the device. What was attached first is then taken back: one direction
        alone would break connections.
        """
        way = self._choose(device.ifindex)
        done: dict[TcDirection, Change] = {}
        for direction in ATTACH_ORDER:
            program = programs[programs_of(device).at(direction)]
            try:
                done[direction] = self._attach(way, device.ifindex, direction, program)
            except AttachError:
                self._take_back(way, device.ifindex, done)
                raise
        self._detach("tcx" if way == "clsact" else "clsact", device.ifindex)
        return max(done.values())

    def present(self) -> frozenset[int]:
        """The devices that may carry something of ours, some of them perhaps gone."""
        for ifindex in self._clsact.marked() - self._qdiscs:
            self._clsact.forget(ifindex)
        names = (path.name for path in self._pins.iterdir())
        matches = (TCX_PIN.match(name) for name in names)
        return frozenset(int(match[2]) for match in matches if match) | self._qdiscs

    def detach(self, ifindex: int) -> bool:
        """Take ours off one device; False when there was nothing."""
        return any([self._detach("tcx", ifindex), self._detach("clsact", ifindex)])

    def _choose(self, ifindex: int) -> AttachMode:
        foreign = ifindex in self._qdiscs and self._clsact.is_foreign(ifindex)
        return choose(self._mode, has_tcx=self._has_tcx, is_foreign=foreign)

    def _attach(
        self, way: AttachMode, ifindex: int, direction: TcDirection, program: LoadedProgram
    ) -> Change:
        if way == "clsact":
            change = self._clsact.attach(ifindex, direction, program)
            self._qdiscs.add(ifindex)
            return change
        return links.attach_tcx(self._pin(ifindex, direction), ifindex, direction, program)

    def _take_back(self, way: AttachMode, ifindex: int, done: Mapping[TcDirection, Change]) -> None:
        if Change.ATTACHED in done.values():
            self._detach(way, ifindex)

    def _detach(self, way: AttachMode, ifindex: int) -> bool:
        if way == "clsact" and ifindex not in self._qdiscs:
            return False
        found = [
            self._clsact.detach(ifindex, direction)
            if way == "clsact"
            else links.detach(self._pin(ifindex, direction))
            for direction in reversed(ATTACH_ORDER)
        ]
        return any(found)

    def _pin(self, ifindex: int, direction: TcDirection) -> Path:
        return self._pins / f"tcx_{direction}_{ifindex}"

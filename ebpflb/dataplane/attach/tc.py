# SPDX-License-Identifier: Apache-2.0
"""Our programs at ingress and egress of devices, through tcx or clsact, and moves between the two.

In the mode "auto" a device gets tcx if the kernel has it, except where others have BPF programs at
its clsact: tcx runs before clsact in both directions, so only at clsact can ours be last at egress.

When a device moves from one to the other, the new programs are attached before the old ones go, so
for a moment both see a packet. That does no harm: a packet translated by the first is addressed to
a backend, which is not a frontend, and a translated reply no longer has the tuple of its flow; the
second program passes them on. If neither were attached, packets of established flows would leave
untranslated, and their peers would answer them with a reset.

At clsact a program is a filter. Our filters are identified by name, priority and handle together,
and no other filter is ever changed or removed. They are first at ingress and last at egress among
the filters that pass on with TC_ACT_UNSPEC, except that a filter with the same priority that is
added later goes before ours. A filter is replaced atomically: packets see the old program or the
new one. A directory `clsact_<ifindex>` next to the pinned links records that we created the qdisc:
it is removed with its last filter, and only if no filters of others are attached to it.
"""

import contextlib
import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change, HeldLinks, LoadedProgram, TcDirection, explained
from ebpflb.dataplane.kernel.rtnetlink import Filter, Rtnetlink, read_filters, read_qdiscs
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.errors import AttachError

AttachMode = Literal["auto", "tcx", "clsact"]

# The hook that reverses comes first: nothing is translated that could not be reversed.
ATTACH_ORDER = (TcDirection.EGRESS, TcDirection.INGRESS)

TCX_PIN = re.compile(r"tcx_(ingress|egress)_([0-9]+)")

HANDLE = 0x6C62
PRIORITY = {TcDirection.INGRESS: 1, TcDirection.EGRESS: 0xFFFE}

_NAME_PREFIX = "ebpflb:"
_PARENT = {TcDirection.INGRESS: 0xFFFFFFF2, TcDirection.EGRESS: 0xFFFFFFF3}
_MARK = re.compile(r"clsact_([0-9]+)")


def program_for(device: Device, direction: TcDirection) -> str:
    """The name of the program for a device."""
    if device.kind == DeviceKind.LB_DEVICE_WORKLOAD:
        return f"lb_pod_{direction}"
    return f"lb_host_{direction}" if device.ethernet else f"lb_l3_{direction}"


def choose(mode: AttachMode, *, has_tcx: bool, is_foreign: bool) -> AttachMode:
    """tcx or clsact for one device; `is_foreign`: others have BPF programs at its clsact."""
    if mode != "auto":
        return mode
    return "tcx" if has_tcx and not is_foreign else "clsact"


class TcHooks:
    """The devices of one network namespace, for one pass: it holds a socket open."""

    def __init__(
        self,
        netlink: Rtnetlink,
        pins: Path,
        mode: AttachMode,
        *,
        has_tcx: bool,
        held: HeldLinks | None = None,
    ) -> None:
        """`pins` is the directory of pinned links."""
        self._clsact = Clsact(netlink, pins)
        self._qdiscs = set(self._clsact.qdiscs())
        self._pins = pins
        self._mode = mode
        self._has_tcx = has_tcx
        self._held = held

    def attach(self, device: Device, programs: Mapping[str, LoadedProgram]) -> Change:
        """Attach both programs to a device; KEPT if there was nothing to do.

        AttachError names the device. If the second one fails, the first is detached again: one
        direction alone would break connections.
        """
        is_foreign = device.ifindex in self._qdiscs and self._clsact.is_foreign(device.ifindex)
        way = choose(self._mode, has_tcx=self._has_tcx, is_foreign=is_foreign)
        done: dict[TcDirection, Change] = {}
        for direction in ATTACH_ORDER:
            program = programs[program_for(device, direction)]
            try:
                done[direction] = self._attach(way, device.ifindex, direction, program)
            except AttachError:
                if Change.ATTACHED in done.values():
                    self._detach(way, device.ifindex)
                raise
        self._detach("tcx" if way == "clsact" else "clsact", device.ifindex)
        return max(done.values())

    def present(self) -> frozenset[int]:
        """The devices that may have our programs, some of them perhaps gone."""
        for ifindex in self._clsact.marked() - self._qdiscs:
            self._clsact.forget(ifindex)
        names = (path.name for path in self._pins.iterdir())
        matches = (TCX_PIN.match(name) for name in names)
        return frozenset(int(match[2]) for match in matches if match) | self._qdiscs

    def detach(self, ifindex: int) -> bool:
        """Detach ours from one device; False if there was nothing."""
        return any([self._detach("tcx", ifindex), self._detach("clsact", ifindex)])

    def _attach(
        self, way: AttachMode, ifindex: int, direction: TcDirection, program: LoadedProgram
    ) -> Change:
        if way == "clsact":
            change = self._clsact.attach(ifindex, direction, program)
            self._qdiscs.add(ifindex)
            return change
        pin = self._pin(ifindex, direction)
        return links.attach_tcx(pin, ifindex, direction, program, self._held)

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


class Clsact:
    """Filters on devices of one network namespace. `marks` is the directory of pinned links."""

    def __init__(self, netlink: Rtnetlink, marks: Path) -> None:
        self._netlink = netlink
        self._marks = marks

    def qdiscs(self) -> frozenset[int]:
        """The devices with a clsact qdisc, whoever created it; none on kernels without tc."""
        try:
            found = read_qdiscs(self._netlink)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return frozenset()
            raise AttachError(f"cannot list qdiscs: {error.strerror}") from error
        return frozenset(qdisc.ifindex for qdisc in found if qdisc.kind == "clsact")

    def filters(self, ifindex: int, direction: TcDirection) -> list[Filter]:
        """All filters of a device, in the kernel's order."""
        with _explained(_place(ifindex, direction)):
            return read_filters(self._netlink, ifindex, _PARENT[direction])

    def is_foreign(self, ifindex: int) -> bool:
        """Whether others have a BPF program at clsact of this device.

        tcx programs run before clsact in both directions, so with such a program ours could not
        be last at egress unless it is at clsact too.
        """
        return any(
            found.kind == "bpf" and not is_ours(found, direction)
            for direction in TcDirection
            for found in self.filters(ifindex, direction)
        )

    def attach(self, ifindex: int, direction: TcDirection, program: LoadedProgram) -> Change:
        """Make `program` run at a device. AttachError names the device.

        Its cause is an OSError, with ENODEV if the device is gone.
        """
        found = self._own(ifindex, direction)
        name = _NAME_PREFIX + program.name
        if found and (found.program, found.name) == (program.identity, name):
            return Change.KEPT
        with _explained(_place(ifindex, direction)):
            self._ensure_qdisc(ifindex)
            options = {"fd": program.fd, "name": name, "direct_action": True}
            self._change("replace" if found else "add", ifindex, direction, **options)
        return Change.REPLACED if found else Change.ATTACHED

    def detach(self, ifindex: int, direction: TcDirection) -> bool:
        """Remove our filter, and our qdisc with its last filter; False if there was none."""
        found = self._own(ifindex, direction)
        if found:
            with _explained(_place(ifindex, direction)):
                self._change("del", ifindex, direction)
        self._release_qdisc(ifindex)
        return found is not None

    def marked(self) -> frozenset[int]:
        """The devices whose qdisc we created, some of them perhaps gone."""
        names = self._marks.iterdir() if self._marks.is_dir() else ()
        matches = (_MARK.fullmatch(path.name) for path in names)
        return frozenset(int(match[1]) for match in matches if match)

    def forget(self, ifindex: int) -> None:
        """Remove the mark of a device that is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._mark(ifindex).rmdir()

    def _own(self, ifindex: int, direction: TcDirection) -> Filter | None:
        filters = self.filters(ifindex, direction)
        return next((found for found in filters if is_ours(found, direction)), None)

    def _change(self, what: str, ifindex: int, direction: TcDirection, **options: object) -> None:
        place = {"parent": _PARENT[direction], "prio": PRIORITY[direction]}
        with self._netlink.iproute() as iproute:
            iproute.tc(f"{what}-filter", "bpf", ifindex, HANDLE, **place, **options)

    def _mark(self, ifindex: int) -> Path:
        return self._marks / f"clsact_{ifindex}"

    def _ensure_qdisc(self, ifindex: int) -> None:
        try:
            with self._netlink.iproute() as iproute:
                iproute.tc("add", "clsact", ifindex)
        except FileExistsError:
            # The older qdisc has the same handle and no egress: filters for it land at ingress.
            if ifindex not in self.qdiscs():
                raise AttachError(
                    f"device {ifindex}: has the qdisc 'ingress' where clsact belongs: "
                    "remove it with `tc qdisc del dev NAME ingress`"
                ) from None
        else:
            self._mark(ifindex).mkdir(exist_ok=True)

    def _release_qdisc(self, ifindex: int) -> None:
        if ifindex not in self.marked():
            return
        if any(self.filters(ifindex, direction) for direction in TcDirection):
            return
        with (
            _explained(f"device {ifindex}, clsact qdisc"),
            contextlib.suppress(FileNotFoundError),
            self._netlink.iproute() as iproute,
        ):
            iproute.tc("del", "clsact", ifindex)
        self.forget(ifindex)


def is_ours(found: Filter, direction: TcDirection) -> bool:
    """Whether this program created the filter."""
    return (
        found.name.startswith(_NAME_PREFIX)
        and (found.handle, found.priority) == (HANDLE, PRIORITY[direction])
        and found.kind == "bpf"
    )


def _place(ifindex: int, direction: TcDirection) -> str:
    return f"device {ifindex}, clsact {direction}"


def _explained(place: str) -> contextlib.AbstractContextManager[None]:
    advice = "`tc filter show` may name a filter of another kind with our priority"
    return explained(place, errno.EINVAL, advice)

# SPDX-License-Identifier: Apache-2.0
"""What is attached where: our hooks (pins and filters), and the order of programs at a hook.

Called by `ebpflb status` and `cleanup`, and by the doctor.
"""

import contextlib
import errno
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.links import CGROUP_HOOKS, TcDirection
from ebpflb.dataplane.attach.tc import Clsact, is_ours
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.dataplane.kernel.uapi import AttachType, BpfObject, LinkType
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.pins import Generation
from ebpflb.errors import AttachError, PinError

_DEVICE_PIN = re.compile(r"(tcx|xdp)_(ingress|egress|native|generic)_[0-9]+")
# The owner of a program, by the prefix of its name.
_OWNERS = {
    "cil_": "Cilium",
    "cilium_": "Cilium",
    "calico_": "Calico",
    "cali_": "Calico",
    "sd_": "systemd",
    "antrea_": "Antrea",
    "kmesh_": "Kmesh",
}
# Programs of others that are known to redirect connections to Services.
_TRANSLATING = ("cil_sock", "calico_connect", "calico_sendmsg")
_TCX = {
    TcDirection.INGRESS: AttachType.TCX_INGRESS,
    TcDirection.EGRESS: AttachType.TCX_EGRESS,
}


@dataclass(frozen=True, slots=True)
class Attachment:
    """One hook. `place`: a device, or the kernel's id of a cgroup; empty if it is gone.

    `current`: whether it runs a program of the generation in question.
    """

    hook: str
    place: str
    program: str
    current: bool


def attachments(links: Path, generation: Generation | None) -> list[Attachment]:
    """Everything attached through pins in `links`, and filters in the current network namespace.

    Cgroup hooks come first. PinError or AttachError if something cannot be read.
    """
    try:
        pinned = pinned_programs(generation) if generation else frozenset()
        found = list(_links(links, pinned))
        with Rtnetlink() as netlink:
            return [*found, *_filters(Clsact(netlink, links), pinned)]
    except OSError as error:
        raise PinError(f"{links}: cannot list attached programs: {error.strerror}") from error


def missing_hooks(found: list[Attachment]) -> list[str]:
    """The socket hooks that run no program, or one of another generation."""
    running = {attachment.hook for attachment in found if attachment.place and attachment.current}
    return [name for pin in CGROUP_HOOKS if (name := pin.removeprefix("lb_")) not in running]


def _links(links: Path, pinned: Collection[int]) -> Iterator[Attachment]:
    for path in sorted(links.iterdir() if links.is_dir() else ()):
        match = _DEVICE_PIN.fullmatch(path.name)
        if not match and path.name not in CGROUP_HOOKS:
            continue
        try:
            fd = libbpf.obj_get(path, BpfObject.LINK)
        except (FileNotFoundError, libbpf.NotPinnedError):
            # The device has gone since the directory was read, or it is somebody else's.
            continue
        with owned(fd):
            link = libbpf.link_info(fd)
        if link.type == LinkType.CGROUP:
            identity = link.target.cgroup.cgroup_id
            hook, place = path.name.removeprefix("lb_"), f"cgroup {identity}" if identity else ""
        else:
            hook = " ".join(match.groups()) if match else ""
            place = _device(link.target.device.ifindex)
        yield Attachment(hook, place, program_name(link.prog_id), link.prog_id in pinned)


def _filters(clsact: Clsact, pinned: Collection[int]) -> Iterator[Attachment]:
    for ifindex in sorted(clsact.qdiscs()):
        for direction in TcDirection:
            # The device may disappear meanwhile.
            with contextlib.suppress(AttachError):
                for found in clsact.filters(ifindex, direction):
                    if is_ours(found, direction):
                        name, current = program_name(found.program), found.program in pinned
                        yield Attachment(f"clsact {direction}", _device(ifindex), name, current)


def _device(ifindex: int) -> str:
    try:
        return socket.if_indextoname(ifindex) if ifindex else ""
    except OSError:
        return ""


def pinned_programs(generation: Generation) -> frozenset[int]:
    """The kernel's ids of a generation's programs. OSError."""
    ids = set()
    for path in generation.progs.iterdir():
        with (
            contextlib.suppress(libbpf.NotPinnedError),
            owned(libbpf.obj_get(path, BpfObject.PROGRAM)) as fd,
        ):
            ids.add(int(libbpf.prog_info(fd).id))
    return frozenset(ids)


def program_name(identity: int) -> str:
    """The kernel's name of a program, at most 15 characters; empty if it is gone. OSError."""
    try:
        with owned(libbpf.prog_by_id(identity)) as fd:
            return str(libbpf.prog_info(fd).name.decode())
    except FileNotFoundError:
        return ""


class HookProgram(NamedTuple):
    """A program at a hook. `ours`: whether it belongs to the generation in force."""

    name: str
    ours: bool

    @property
    def title(self) -> str:
        """Its name, and the project it belongs to if the name tells."""
        owner = next((who for start, who in _OWNERS.items() if self.name.startswith(start)), "")
        name = self.name or "a program without a name"
        return f"{name} of {owner}" if owner else name

    @property
    def is_ebpflb(self) -> bool:
        """Whether its name is that of one of our programs, whoever attached it."""
        return self.name in PROGRAMS

    @property
    def translates(self) -> bool:
        """Whether it is known to load-balance Services."""
        return self.name.startswith(_TRANSLATING)


class ProgramOrder(NamedTuple):
    """The programs of others before and after ours; all are in `before` if we have none."""

    ours: bool
    before: Sequence[HookProgram]
    after: Sequence[HookProgram]


def order_of(every: Iterable[HookProgram]) -> ProgramOrder:
    """Sort the programs at a hook; a second one of ours does not count as another's."""
    before: list[HookProgram] = []
    after: list[HookProgram] = []
    found = False
    for each in every:
        if each.ours:
            found = True
        else:
            (after if found else before).append(each)
    return ProgramOrder(found, before, after)


def at_cgroup(cgroup: int, attach_type: AttachType, pinned: Collection[int]) -> list[HookProgram]:
    """The programs of a cgroup (its descriptor) and of its ancestors. OSError."""
    return _named(libbpf.prog_query(cgroup, attach_type, effective=True), pinned)


def at_device(
    ifindex: int, direction: TcDirection, clsact: Clsact | None, pinned: Collection[int]
) -> list[HookProgram]:
    """The programs at tcx, then the filters of clsact by priority. OSError, AttachError."""
    filters = clsact.filters(ifindex, direction) if clsact else ()
    of_clsact = (
        HookProgram(program_name(each.program) or each.name or each.kind, each.program in pinned)
        for each in sorted(filters, key=lambda each: each.priority)
    )
    return [*_named(at_tcx(ifindex, direction), pinned), *of_clsact]


def at_tcx(ifindex: int, direction: TcDirection) -> list[int]:
    """The kernel's ids of the programs at tcx, in their order; none without tcx. OSError."""
    try:
        return libbpf.prog_query(ifindex, _TCX[direction])
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return []
        raise


def _named(identities: Iterable[int], pinned: Collection[int]) -> list[HookProgram]:
    return [HookProgram(program_name(each), each in pinned) for each in identities]

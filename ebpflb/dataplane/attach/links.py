# SPDX-License-Identifier: Apache-2.0
"""Pinned bpf_links: cgroup socket hooks, tcx at ingress and egress of a device, and XDP.

A pinned link stays when the agent ends. To run another program it is updated in place (one pointer
in the kernel), so a hook that has a program always has one. If a pin's link is for another target,
a device that is gone (the kernel reports ifindex 0) or another cgroup, a new link is made and
renamed over the old pin.

Order at tcx: first at ingress and last at egress, at the time of attaching.

There is no fallback to bpf_prog_attach for cgroups: cgroup links exist since Linux 5.7 (commit
af6eea57437a "bpf: Implement bpf_link-based cgroup BPF program attachment"), below our floor of
5.10. tcx links exist since 6.6 (commit e420bed02507 "bpf: Add fd-based tcx multi-prog infra with
link support"); clsact serves older kernels.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import NamedTuple, Self

from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.uapi import (
    AttachFlag,
    AttachType,
    BpfObject,
    LinkInfo,
    LinkType,
    XdpFlag,
)
from ebpflb.dataplane.layout.programs import CGROUP_PROGRAMS
from ebpflb.dataplane.load.pins import remove_pin
from ebpflb.errors import AttachError

# Hooks that reverse come before those that translate: nothing is translated that could not be
# reversed, or whose connection would not be counted.
_CGROUP_ORDER = (
    *("lb_sock_ops", "lb_sock_release", "lb_getpeer4", "lb_getpeer6", "lb_recvmsg4", "lb_recvmsg6"),
    *("lb_sendmsg4", "lb_sendmsg6", "lb_connect4", "lb_connect6"),
)
CGROUP_HOOKS: dict[str, AttachType] = {
    name: attach_type
    for name in _CGROUP_ORDER
    if (attach_type := CGROUP_PROGRAMS[name].attach_type) is not None
}
"""The hook of each socket program, in attach order."""


class TcDirection(StrEnum):
    """Seen from the device: what arrives on it, what leaves by it."""

    INGRESS = "ingress"
    EGRESS = "egress"


class Change(IntEnum):
    """What was done to a program; of two changes the larger one counts."""

    KEPT = 0
    REPLACED = 1
    ATTACHED = 2
    DETACHED = 3


class LoadedProgram(NamedTuple):
    """A loaded program; `identity` is the kernel's id."""

    name: str
    fd: int
    identity: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """The program pinned at `path`; `close()` it after use. OSError if there is none."""
        fd = libbpf.obj_get(path, BpfObject.PROGRAM)
        return cls(path.name, fd, libbpf.prog_info(fd).id)

    def close(self) -> None:
        os.close(self.fd)


class HeldLinks:
    """Descriptors of links: one whose pin somebody removes stays attached, and is pinned again."""

    def __init__(self) -> None:
        self._links: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors; what is pinned stays attached."""
        self._release(list(self._links))

    def unpinned(self) -> list[Path]:
        """Where links were pinned, and nothing is now."""
        return [pin for pin in self._links if not pin.exists()]

    def objects(self) -> Mapping[Path, int]:
        """The descriptors by their pins, whether these are there or not."""
        return dict(self._links)

    def pin_again(self, pin: Path) -> int | None:
        """Pin the link that was pinned there last; returns a descriptor of its own. OSError.

        None if there was none.
        """
        if pin not in self._links:
            return None
        libbpf.obj_pin(self._links[pin], pin)
        return os.dup(self._links[pin])

    def keep(self, pin: Path, change: Change) -> None:
        """Hold the link that is pinned there now. OSError."""
        if change is not Change.KEPT or pin not in self._links:
            link = libbpf.obj_get(pin, BpfObject.LINK)
            self._release([pin])
            self._links[pin] = link

    def release_unpinned(self) -> None:
        """Let go of links that were detached on purpose."""
        self._release(self.unpinned())

    def _release(self, pins: Iterable[Path]) -> None:
        for pin in pins:
            if pin in self._links:
                os.close(self._links.pop(pin))


class _Hook(NamedTuple):
    """Where a link attaches. `target` is what the kernel is given, `identity` what it reports."""

    place: str
    link_type: LinkType
    attach_type: AttachType
    target: int
    identity: int
    flags: AttachFlag | XdpFlag = AttachFlag(0)

    def carries(self, link: LinkInfo) -> bool:
        """Whether a link is attached here, and not detached."""
        if link.type != self.link_type:
            return False
        if self.link_type == LinkType.CGROUP:
            found = (link.target.cgroup.cgroup_id, link.target.cgroup.attach_type)
        elif self.link_type == LinkType.XDP:
            found = (link.target.device.ifindex, self.attach_type)
        else:
            found = (link.target.device.ifindex, link.target.device.attach_type)
        return bool(found == (self.identity, self.attach_type))


def attach_cgroup(
    pin: Path,
    cgroup: Path,
    attach_type: AttachType,
    program: LoadedProgram,
    held: HeldLinks | None = None,
) -> Change:
    """Make `program` run at a hook of a cgroup v2 directory and those below, by the link at `pin`.

    AttachError names directory and hook.
    """
    place = f"cgroup {cgroup}, {attach_type.name}"
    with _explained(place), owned(os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)) as target:
        if libc.filesystem_type(cgroup) != libc.CGROUP2_SUPER_MAGIC:
            raise AttachError(
                f"{cgroup}: not a cgroup v2 directory: set --cgroup-root to one (`grep cgroup2 "
                "/proc/mounts` lists them)"
            )
        identity = os.fstat(target).st_ino
        hook = _Hook(place, LinkType.CGROUP, attach_type, target, identity)
        return _attach(pin, program, hook, held)


def attach_tcx(
    pin: Path,
    ifindex: int,
    direction: TcDirection,
    program: LoadedProgram,
    held: HeldLinks | None = None,
) -> Change:
    """Make `program` run at tcx of a device in the current network namespace.

    AttachError names the device; its cause is an OSError, with ENODEV if the device is gone.
    """
    place = f"device {ifindex}, tcx {direction}"
    if direction == TcDirection.INGRESS:
        attach_type, order = AttachType.TCX_INGRESS, AttachFlag.BEFORE
    else:
        attach_type, order = AttachType.TCX_EGRESS, AttachFlag.AFTER
    hook = _Hook(place, LinkType.TCX, attach_type, ifindex, ifindex, order)
    with _explained(place):
        return _attach(pin, program, hook, held)


def attach_xdp(
    pin: Path,
    ifindex: int,
    flags: XdpFlag,
    program: LoadedProgram,
    held: HeldLinks | None = None,
) -> Change:
    """Make `program` run at XDP of a device in the current network namespace.

    AttachError names the device; its cause is an OSError, with EBUSY if it has another program.
    """
    place = f"device {ifindex}, XDP"
    hook = _Hook(place, LinkType.XDP, AttachType.XDP, ifindex, ifindex, flags)
    with _explained(place):
        return _attach(pin, program, hook, held)


def is_pinned(pin: Path) -> bool:
    """Whether there is a link, even one that was not finished."""
    return pin.exists() or _unfinished(pin).exists()


def detach(pin: Path) -> bool:
    """Take the program of a pinned link off its hook at once; False if nothing was pinned.

    Merely unlinking the pin would detach a moment later, from a kernel worker.
    """
    with _explained(f"pin {pin}"):
        remove_pin(_unfinished(pin))
        link = _open(pin)
        if link is None:
            return False
        with owned(link):
            libbpf.link_detach(link)
            pin.unlink()
    return True


def _attach(pin: Path, program: LoadedProgram, hook: _Hook, held: HeldLinks | None) -> Change:
    change = _attach_at(pin, program, hook, held)
    if held:
        held.keep(pin, change)
    return change


def _attach_at(pin: Path, program: LoadedProgram, hook: _Hook, held: HeldLinks | None) -> Change:
    remove_pin(_unfinished(pin))
    link = _open(pin)
    if link is None and held:
        link = held.pin_again(pin)
    if link is None:
        _create(pin, program, hook)
        return Change.ATTACHED
    with owned(link):
        found = libbpf.link_info(link)
        if not hook.carries(found):
            _create(_unfinished(pin), program, hook)
            _unfinished(pin).rename(pin)
            return Change.ATTACHED
        if found.prog_id == program.identity:
            return Change.KEPT
        libbpf.link_update(link, program.fd)
        return Change.REPLACED


def _open(pin: Path) -> int | None:
    """The link pinned there; None if there is none. Something else is removed."""
    try:
        return libbpf.obj_get(pin, BpfObject.LINK)
    except FileNotFoundError:
        return None
    except libbpf.NotPinnedError:
        remove_pin(pin)
        return None


def _create(pin: Path, program: LoadedProgram, hook: _Hook) -> None:
    link = libbpf.link_create(program.fd, hook.target, hook.attach_type, hook.flags)
    with owned(link):
        libbpf.obj_pin(link, pin)


def _unfinished(pin: Path) -> Path:
    """Where a link waits before it replaces the one at `pin`."""
    return pin.with_name(f"{pin.name}_new")


def _explained(place: str) -> contextlib.AbstractContextManager[None]:
    advice = "run as root; `bpftool cgroup tree` shows a program attached exclusively"
    return explained(place, errno.EPERM, advice)


@contextlib.contextmanager
def explained(place: str, number: int, advice: str) -> Iterator[None]:
    """Turn OSError into AttachError, with advice if the error has this errno."""
    try:
        yield
    except OSError as error:
        text = f"{error.strerror}: {advice}" if error.errno == number else error.strerror
        raise AttachError(f"{place}: {text}") from error

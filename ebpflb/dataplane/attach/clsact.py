# SPDX-License-Identifier: Apache-2.0
"""tc programs as filters of the clsact qdisc, for kernels or devices where tcx cannot be used.

Our filters are known by name, priority and handle together: nothing else is ever changed or
removed. They stand first at ingress and last at egress among the filters that pass on with
TC_ACT_UNSPEC, except that a filter of the same priority which is added later goes before ours.
A replaced filter is exchanged at once; packets see the old program or the new one.

A directory `clsact_<ifindex>` beside the pinned links remembers that the qdisc is ours: it is
removed with the last filter, and only if no filter of anybody else hangs on it by then.
"""

import contextlib
import errno
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.links import Change, LoadedProgram, TcDirection, explained
from ebpflb.dataplane.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_ECHO,
    NLM_F_EXCL,
    Rtm,
    Rtnetlink,
    attribute,
    attributes,
    number,
    text,
)
from ebpflb.errors import AttachError

HANDLE = 0x6C62
PRIORITY = {TcDirection.INGRESS: 1, TcDirection.EGRESS: 0xFFFE}

_NAME_PREFIX = "ebpflb:"
_KIND = b"clsact\0"
_PARENT_CLSACT = 0xFFFFFFF1
_PARENT = {TcDirection.INGRESS: 0xFFFFFFF2, TcDirection.EGRESS: 0xFFFFFFF3}
_QDISC_HANDLE = 0xFFFF0000
_ETH_P_ALL = 0x0300  # 0x0003 in network order, as tcm_info wants it
_MARK = re.compile(r"clsact_([0-9]+)")

_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS, _TCA_BPF_ID = 6, 7, 8, 11
_DIRECT_ACTION = 1

_TCMSG = struct.Struct("=BxxxiIII")
_U32 = struct.Struct("=I")


class Filter(NamedTuple):
    """One filter of a device; `program` is the kernel's id, 0 for what is no BPF program."""

    kind: str
    name: str
    priority: int
    handle: int
    program: int

    def is_ours(self, direction: TcDirection) -> bool:
        """Whether this program made it."""
        return (
            self.name.startswith(_NAME_PREFIX)
            and (self.handle, self.priority) == (HANDLE, PRIORITY[direction])
            and self.kind == "bpf"
        )


class Clsact:
    """Filters on devices of one network namespace. `marks` is the directory of pinned links."""

    def __init__(self, netlink: Rtnetlink, marks: Path) -> None:
        self._netlink = netlink
        self._marks = marks

    def qdiscs(self) -> frozenset[int]:
        """The devices that carry a clsact qdisc, whoever made it; none on kernels without tc."""
        try:
            found = self._netlink.dump(Rtm.GETQDISC, _tcmsg(0))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return frozenset()
            raise AttachError(f"cannot list qdiscs: {error.strerror}") from error
        return frozenset(
            _TCMSG.unpack_from(body)[1]
            for body in found
            if attributes(body, _TCMSG.size).get(_TCA_KIND) == _KIND
        )

    def filters(self, ifindex: int, direction: TcDirection) -> list[Filter]:
        """All filters of a device, in the order in which the kernel lists them."""
        request = _tcmsg(ifindex, parent=_PARENT[direction])
        with _explained(_place(ifindex, direction)):
            return list(_filters(self._netlink.dump(Rtm.GETTFILTER, request)))

    def is_foreign(self, ifindex: int) -> bool:
        """Whether a BPF program of somebody else runs at clsact of this device.

        tcx programs run before clsact in both directions, so beside such a program ours could
        not be the last at egress: it has to be at clsact too.
        """
        return any(
            found.kind == "bpf" and not found.is_ours(direction)
            for direction in TcDirection
            for found in self.filters(ifindex, direction)
        )

    def attach(self, ifindex: int, direction: TcDirection, program: LoadedProgram) -> Change:
        """Have `program` run at a device. AttachError names the device.

        Its cause is an OSError, with ENODEV when the device is gone.
        """
        found = self._own(ifindex, direction)
        if found and found.program == program.identity and found.name == _name(program):
            return Change.KEPT
        with _explained(_place(ifindex, direction)):
            self._ensure_qdisc(ifindex)
            request = _filter_message(ifindex, direction) + _filter_options(program)
            flags = NLM_F_CREATE if found else NLM_F_CREATE | NLM_F_EXCL
            self._netlink.request(Rtm.NEWTFILTER, request, flags)
        return Change.REPLACED if found else Change.ATTACHED

    def detach(self, ifindex: int, direction: TcDirection) -> bool:
        """Remove our filter, and our qdisc when nobody uses it; False when there was none."""
        found = self._own(ifindex, direction)
        if found:
            with _explained(_place(ifindex, direction)):
                self._netlink.request(Rtm.DELTFILTER, _filter_message(ifindex, direction))
        self._release_qdisc(ifindex)
        return found is not None

    def marked(self) -> frozenset[int]:
        """The devices whose qdisc is ours, some of them perhaps gone."""
        names = self._marks.iterdir() if self._marks.is_dir() else ()
        matches = (_MARK.fullmatch(path.name) for path in names)
        return frozenset(int(match[1]) for match in matches if match)

    def forget(self, ifindex: int) -> None:
        """Drop the mark of a device that is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._mark(ifindex).rmdir()

    def _own(self, ifindex: int, direction: TcDirection) -> Filter | None:
        filters = self.filters(ifindex, direction)
        return next((found for found in filters if found.is_ours(direction)), None)

    def _mark(self, ifindex: int) -> Path:
        return self._marks / f"clsact_{ifindex}"

    def _ensure_qdisc(self, ifindex: int) -> None:
        try:
            self._netlink.request(Rtm.NEWQDISC, _qdisc_message(ifindex), NLM_F_CREATE | NLM_F_EXCL)
        except FileExistsError:
            self._refuse_ingress_qdisc(ifindex)
        else:
            self._mark(ifindex).mkdir(exist_ok=True)

    def _refuse_ingress_qdisc(self, ifindex: int) -> None:
        """The older qdisc has the same handle and no egress: filters for it land at ingress."""
        request = _tcmsg(ifindex, _QDISC_HANDLE, _PARENT_CLSACT)
        (body,) = self._netlink.request(Rtm.GETQDISC, request, NLM_F_ECHO)
        if (kind := text(attributes(body, _TCMSG.size)[_TCA_KIND])) != "clsact":
            raise AttachError(
                f"device {ifindex}: has the qdisc {kind!r} where clsact belongs: "
                "remove it with `tc qdisc del dev NAME ingress`"
            )

    def _release_qdisc(self, ifindex: int) -> None:
        if ifindex not in self.marked():
            return
        if any(self.filters(ifindex, direction) for direction in TcDirection):
            return
        with _explained(f"device {ifindex}, clsact qdisc"), contextlib.suppress(FileNotFoundError):
            self._netlink.request(Rtm.DELQDISC, _qdisc_message(ifindex))
        self.forget(ifindex)


def _filters(bodies: list[bytes]) -> Iterator[Filter]:
    for body in bodies:
        _, _, handle, _, priority_and_protocol = _TCMSG.unpack_from(body)
        found = attributes(body, _TCMSG.size)
        options = attributes(found.get(_TCA_OPTIONS, b""))
        if handle:
            yield Filter(
                kind=text(found[_TCA_KIND]),
                name=text(options.get(_TCA_BPF_NAME, b"")),
                priority=priority_and_protocol >> 16,
                handle=handle,
                program=number(options.get(_TCA_BPF_ID, b"")),
            )


def _tcmsg(ifindex: int, handle: int = 0, parent: int = 0, details: int = 0) -> bytes:
    return _TCMSG.pack(0, ifindex, handle, parent, details)


def _qdisc_message(ifindex: int) -> bytes:
    return _tcmsg(ifindex, _QDISC_HANDLE, _PARENT_CLSACT) + attribute(_TCA_KIND, _KIND)


def _filter_message(ifindex: int, direction: TcDirection) -> bytes:
    details = PRIORITY[direction] << 16 | _ETH_P_ALL
    return _tcmsg(ifindex, HANDLE, _PARENT[direction], details) + attribute(_TCA_KIND, b"bpf\0")


def _filter_options(program: LoadedProgram) -> bytes:
    return attribute(
        _TCA_OPTIONS,
        attribute(_TCA_BPF_FD, _U32.pack(program.fd))
        + attribute(_TCA_BPF_NAME, _name(program).encode() + b"\0")
        + attribute(_TCA_BPF_FLAGS, _U32.pack(_DIRECT_ACTION)),
    )


def _name(program: LoadedProgram) -> str:
    return _NAME_PREFIX + program.name


def _place(ifindex: int, direction: TcDirection) -> str:
    return f"device {ifindex}, clsact {direction}"


def _explained(place: str) -> contextlib.AbstractContextManager[None]:
    advice = "`tc filter show` may name a filter of another kind with our priority"
    return explained(place, errno.EINVAL, advice)

# SPDX-License-Identifier: Apache-2.0
"""The programs at a hook in the order in which they run: ours, and whose the others are."""

import errno
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ebpflb.dataplane.attach.attachments import program_name
from ebpflb.dataplane.attach.clsact import Clsact
from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachType

# By how their names begin.
_OWNERS = {
    "cil_": "Cilium",
    "cilium_": "Cilium",
    "calico_": "Calico",
    "cali_": "Calico",
    "sd_": "systemd",
    "antrea_": "Antrea",
    "kmesh_": "Kmesh",
}
# Of these it is known that they lead connections to Services elsewhere themselves.
_TRANSLATING = ("cil_sock", "calico_connect", "calico_sendmsg")
_TCX = {
    TcDirection.INGRESS: AttachType.TCX_INGRESS,
    TcDirection.EGRESS: AttachType.TCX_EGRESS,
}


class Neighbour(NamedTuple):
    """A program at a hook. `ours`: it is of the generation in force."""

    name: str
    ours: bool

    @property
    def title(self) -> str:
        """Its name, with whose it is where that can be told."""
        owner = next((who for start, who in _OWNERS.items() if self.name.startswith(start)), "")
        shown = self.name or "a program without a name"
        return f"{shown} of {owner}" if owner else shown

    @property
    def translates(self) -> bool:
        """Whether it is known to serve Services."""
        return self.name.startswith(_TRANSLATING)


class Order(NamedTuple):
    """Who runs before and after ours; without ours all are `before`."""

    ours: bool
    before: Sequence[Neighbour]
    after: Sequence[Neighbour]


def order_of(every: Iterable[Neighbour]) -> Order:
    """Look at a hook from our program; a second one of ours is nobody else's."""
    before: list[Neighbour] = []
    after: list[Neighbour] = []
    found = False
    for each in every:
        if each.ours:
            found = True
        else:
            (after if found else before).append(each)
    return Order(found, before, after)


def at_cgroup(cgroup: int, attach_type: AttachType, pinned: Collection[int]) -> list[Neighbour]:
    """What runs for a cgroup (its descriptor), with what is attached above it. OSError."""
    return _named(libbpf.prog_query(cgroup, attach_type, effective=True), pinned)


def at_device(
    ifindex: int, direction: TcDirection, clsact: Clsact | None, pinned: Collection[int]
) -> list[Neighbour]:
    """What runs at tcx, then the filters of clsact by their priority. OSError, AttachError."""
    filters = clsact.filters(ifindex, direction) if clsact else ()
    of_clsact = (
        Neighbour(program_name(each.program) or each.name or each.kind, each.program in pinned)
        for each in sorted(filters, key=lambda each: each.priority)
    )
    return [*_named(_at_tcx(ifindex, direction), pinned), *of_clsact]


def _at_tcx(ifindex: int, direction: TcDirection) -> list[int]:
    try:
        return libbpf.prog_query(ifindex, _TCX[direction])
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return []
        raise


def _named(identities: Iterable[int], pinned: Collection[int]) -> list[Neighbour]:
    return [Neighbour(program_name(each), each in pinned) for each in identities]

# SPDX-License-Identifier: Apache-2.0
"""Programs of ebpflb at this node's hooks that belong to other pins: a second set.

Both sets translate, and the first one at a hook decides, from its own Services. It belongs to an
agent with another directory of pins, or was left when pins were lost, as with an unmounted bpffs
that another mount namespace still holds: its links live on, and no path leads to them.

They are told by name, type and the names of their maps: the tag differs between versions.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from errno import ENODEV, EPERM
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.attachments import at_tcx, pinned_programs
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, TcDirection, explained
from ebpflb.dataplane.attach.tc import Clsact, is_ours
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink, device_name, read_interfaces
from ebpflb.dataplane.kernel.uapi import AttachType, BpfObject, LinkInfo, LinkType
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.pins import LINKS, generations
from ebpflb.errors import AttachError

_SOCKET_HOOKS = {kind: name.removeprefix("lb_") for name, kind in CGROUP_HOOKS.items()}
_TCX = {AttachType.TCX_INGRESS: TcDirection.INGRESS, AttachType.TCX_EGRESS: TcDirection.EGRESS}


class Stray(NamedTuple):
    """A program of another set. `device`: empty for a socket hook. `link`: 0 for a filter.

    `first`: it runs before ours, or ours is not there.
    """

    hook: str
    device: str
    program: int
    link: int
    first: bool


def own_programs(root: Path) -> frozenset[int]:
    """The kernel's ids of the programs pinned at `root`, and of those that its links run."""
    found = {link.prog_id for link in _pinned_links(root / LINKS)}
    for generation in generations(root):
        # The remains of an interrupted start may lack the directory.
        with suppress(FileNotFoundError):
            found |= pinned_programs(generation)
    return frozenset(found)


def served_cgroups(root: Path) -> frozenset[int]:
    """The kernel's ids of the cgroups that the links at `root` are attached to."""
    links = _pinned_links(root / LINKS)
    return frozenset(each.target.cgroup.cgroup_id for each in links if each.type == LinkType.CGROUP)


def find_strays(root: Path, cgroups: Collection[int], own: Collection[int] = ()) -> list[Stray]:
    """Those at hooks of these cgroups, and of the devices of this network namespace.

    `own`: programs that are ours, besides those of `own_programs()`. AttachError.
    """
    with explained("hooks of this node", EPERM, "run as root"), Rtnetlink() as netlink:
        programs = _Programs(own_programs(root).union(own))
        links = list(libbpf.links())
        return [
            *_at_sockets(links, cgroups, programs),
            *_at_devices(links, netlink, programs),
            *_at_clsact(Clsact(netlink, root / LINKS), programs),
        ]


def take_off(stray: Stray) -> None:
    """Detach the link of a stray, wherever it is pinned. AttachError."""
    place = f"{stray.hook} {stray.device}".strip()
    with (
        explained(place, EPERM, "run as root"),
        suppress(FileNotFoundError),
        owned(libbpf.link_by_id(stray.link)) as link,
    ):
        if libbpf.link_info(link).prog_id == stray.program:
            libbpf.link_detach(link)


def summary(strays: Sequence[Stray]) -> str:
    """Where they are, and who decides."""
    sockets = sum(not each.device for each in strays)
    devices = len({each.device for each in strays if each.device})
    places = [
        f"{count} {what}{'' if count == 1 else 's'}"
        for count, what in ((sockets, "socket hook"), (devices, "device"))
        if count
    ]
    text = f"another set of ebpflb's programs is at {' and '.join(places)}"
    if any(each.first for each in strays):
        return f"{text} and decides, because it runs first"
    return f"{text}, after ours, and decides about what ours leaves"


def _pinned_links(directory: Path) -> Iterator[LinkInfo]:
    for path in directory.iterdir() if directory.is_dir() else ():
        with suppress(OSError), owned(libbpf.obj_get(path, BpfObject.LINK)) as link:
            yield libbpf.link_info(link)


class _Programs:
    """Which programs are ours, and which belong to another set, by the kernel's id."""

    def __init__(self, own: Collection[int]) -> None:
        self.own = own
        self._known: dict[int, bool] = dict.fromkeys(own, False)

    def is_stray(self, identity: int) -> bool:
        if identity not in self._known:
            self._known[identity] = _is_of_ebpflb(identity)
        return self._known[identity]

    def is_first(self, identity: int, order: Sequence[int]) -> bool:
        """`order`: of the programs at a hook."""
        return not any(each in self.own for each in order[: order.index(identity)])


def _is_of_ebpflb(identity: int) -> bool:
    with suppress(FileNotFoundError), owned(libbpf.prog_by_id(identity)) as program:
        found = libbpf.prog_info(program)
        known = PROGRAMS.get(found.name.decode())
        if known and known.type == found.type:
            return any(_map_name(each) in MAPS for each in libbpf.prog_maps(program))
    return False


def _map_name(identity: int) -> str:
    with owned(libbpf.map_by_id(identity)) as found:
        return str(libbpf.map_info(found).name.decode())


def _at_sockets(
    links: Iterable[LinkInfo], cgroups: Collection[int], programs: _Programs
) -> Iterator[Stray]:
    # Programs of a cgroup run in the order in which they were attached, and so do links by id.
    order = defaultdict[int, list[LinkInfo]](list)
    for each in links:
        if each.type == LinkType.CGROUP and each.target.cgroup.cgroup_id in cgroups:
            order[each.target.cgroup.attach_type].append(each)
    for kind, hook in _SOCKET_HOOKS.items():
        identities = [each.prog_id for each in order[kind]]
        for each in order[kind]:
            if programs.is_stray(each.prog_id):
                first = programs.is_first(each.prog_id, identities)
                yield Stray(hook, "", each.prog_id, each.id, first)


def _at_devices(
    links: Iterable[LinkInfo], netlink: Rtnetlink, programs: _Programs
) -> Iterator[Stray]:
    kinds = (LinkType.TCX, LinkType.XDP)
    found = [each for each in links if each.type in kinds and programs.is_stray(each.prog_id)]
    # The kernel does not say in which network namespace a link's device is.
    devices = {each.ifindex: each for each in read_interfaces(netlink)} if found else {}
    for each in found:
        device = devices.get(each.target.device.ifindex)
        if device is None:
            continue
        if each.type == LinkType.XDP:
            if device.xdp == each.prog_id:
                yield Stray("XDP", device.name, each.prog_id, each.id, first=True)
            continue
        direction = _TCX[each.target.device.attach_type]
        order = _tcx_order(device.ifindex, direction)
        if each.prog_id in order:
            first = programs.is_first(each.prog_id, order)
            yield Stray(f"tcx {direction}", device.name, each.prog_id, each.id, first)


def _at_clsact(clsact: Clsact, programs: _Programs) -> Iterator[Stray]:
    for ifindex in sorted(clsact.qdiscs()):
        for direction in TcDirection:
            for program in _own_filters(clsact, ifindex, direction):
                if programs.is_stray(program):
                    order = [*_tcx_order(ifindex, direction), program]
                    first = programs.is_first(program, order)
                    name = device_name(ifindex)
                    yield Stray(f"clsact {direction}", name, program, 0, first)


def _tcx_order(ifindex: int, direction: TcDirection) -> list[int]:
    """Nothing if the device has gone meanwhile."""
    try:
        return at_tcx(ifindex, direction)
    except OSError as error:
        if error.errno != ENODEV:
            raise
        return []


def _own_filters(clsact: Clsact, ifindex: int, direction: TcDirection) -> list[int]:
    """Nothing if the device has gone meanwhile."""
    try:
        found = clsact.filters(ifindex, direction)
    except AttachError:
        return []
    return [each.program for each in found if is_ours(each, direction)]

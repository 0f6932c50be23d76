# SPDX-License-Identifier: Apache-2.0
"""Brings every hook of a node in line with its network: programs, and the maps of devices.

Level-triggered: `Hooks.apply()` compares the actual and desired state, and does what is missing. A
device that fails is reported, and the others are served.

Order: what a program reads is there before the program runs, and goes after it. XDP comes after tc,
and a device is marked as accepting frames from other devices' XDP only while it does. The socket
hooks come first, because they serve everybody at once while devices take their time: attaching to a
device for the first time waits for an RCU grace period, about 15 ms per direction. A pod is marked
as covered once all its devices have our programs, of whatever generation, and unmarked before they
go.
"""

import errno
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.device_maps import (
    mark_host,
    mark_pods,
    remove_other_devices,
    remove_other_pod_cgroups,
    remove_other_subnets,
    write_devices,
    write_pod_cgroups,
    write_subnets,
    write_uplinks,
)
from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, Change, HeldLinks, LoadedProgram
from ebpflb.dataplane.attach.pod_cgroups import PodCgroups
from ebpflb.dataplane.attach.tc import TCX_PIN, AttachMode, TcHooks
from ebpflb.dataplane.attach.xdp import NO_XDP, XDP_PIN, XdpHooks, XdpSettings, XdpWay, attached
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import Namespaces, Veth
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.dataplane.layout.programs import TC_PROGRAMS, XDP_PROGRAM
from ebpflb.errors import EbpflbError, PinError, ProbeError
from ebpflb.model.address import Address
from ebpflb.model.pod import PodSockets

_Target = TypeVar("_Target", int, Path)


class HookPlaces(NamedTuple):
    """Directories: pinned programs, pinned links, and the cgroup whose sockets are served."""

    progs: Path
    links: Path
    cgroup: Path


class Applied:
    """What a pass did and what failed, by device, hook or map. Both empty: nothing to do."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self.errors: dict[str, EbpflbError] = {}

    def attempt(self, name: str, step: Callable[[], Change]) -> bool:
        """Take one step and record its outcome; returns whether it succeeded.

        A device that disappeared meanwhile is not an error: its event is on the way.
        """
        try:
            change = step()
        except EbpflbError as error:
            if not _is_gone(error):
                self.errors[name] = error
            return False
        if change:
            self.changes[name] = max(change, self.changes.get(name, change))
        return True


class Hooks:
    """The hooks of one node, for the programs of one generation. `close()` leaves them attached."""

    def __init__(
        self,
        places: HookPlaces,
        maps: MapSet,
        probe: Probe,
        held: HeldLinks,
        mode: AttachMode = "auto",
    ) -> None:
        """PinError if a program is missing; ProbeError if the kernel lacks what `mode` asks for.

        `held`: of every generation, so that no link is ever without a pin and a descriptor.
        """
        self._has_tcx = probe.supports(Feature.TCX_LINK)
        without = () if probe.supports(Feature.SOCK_OPS) else ("lb_sock_ops",)
        self._cgroup_hooks = {
            name: kind for name, kind in CGROUP_HOOKS.items() if name not in without
        }
        if mode == "tcx" and not self._has_tcx:
            reason = probe.find(Feature.TCX_LINK).reason
            raise ProbeError(f"tcx is not available: {reason}; use `auto` or `clsact`")
        self._places = places
        self._devices, self._netns = maps["lb_devices"], maps["lb_netns"]
        self._uplinks, self._subnets = maps["lb_uplinks"], maps["lb_subnets"]
        self._pod_cgroups = maps["lb_pod_cgroups"]
        self._mode = mode
        self._namespaces = Namespaces()
        self._cgroups = PodCgroups(places.cgroup)
        # What is known of pods, the namespaces of those under tc cover, and their cgroups.
        self.pods = PodSockets()
        self._covered: Mapping[int, Set[int]] = {}
        self._marked: frozenset[int] = frozenset()
        self._programs: dict[str, LoadedProgram] = {}
        self.links = held
        # How XDP is attached to each host device.
        self.xdp: Mapping[int, XdpWay] = {}
        self._open_programs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._programs:
            self._programs.popitem()[1].close()

    @property
    def programs(self) -> Mapping[Path, LoadedProgram]:
        """The programs that it attaches, by their pins."""
        return {self._places.progs / name: each for name, each in self._programs.items()}

    def mark_known_pods(self, state: NetworkState) -> None:
        """Before the first `apply()`: mark the pods whose devices carry programs of any generation.

        The socket hooks move first. To them a pod that is not marked is one without tc cover, and
        its UDP sockets would get a backend for ever; and sockets of pods that have opted out would
        be translated. An error will occur in `apply()` again, which reports it.
        """
        if self._covered:
            return
        with suppress(EbpflbError, OSError), self._tc_hooks() as tc:
            self._mark_pods(state.devices.values(), tc.present())

    def apply(self, state: NetworkState, xdp: XdpSettings = NO_XDP) -> Applied:
        """Bring hooks and maps in line with the network namespace of the calling thread."""
        done = Applied()
        devices = state.devices.values()
        with self._tc_hooks() as tc:
            pins, held = self._places.links, self.links
            done.attempt("lb_netns", lambda: mark_host(self._netns))
            self._attach_cgroup(done)
            done.attempt("lb_subnets", lambda: write_subnets(self._subnets, devices))
            xdp_hooks = XdpHooks(pins, self._programs.get(XDP_PROGRAM), held=held)
            ways = xdp_hooks.plan(devices, xdp)
            kept = {each: way for each, way in ways.items() if self.xdp.get(each) == way}
            self._write_hosts(devices, kept, done)
            served = {
                ifindex
                for ifindex, device in state.devices.items()
                if done.attempt(device.name, partial(tc.attach, device, self._programs))
            }
            done.attempt("lb_netns", partial(self._mark_pods, devices, served))
            done.attempt("xdp", lambda: self._serve_xdp(xdp_hooks, devices, ways, done))
            if self.xdp != kept:
                self._write_hosts(devices, self.xdp, done)
            _detach_devices(tc, tc.present() - state.devices.keys(), done)
        _detach_pins(_unknown(self._places.links), done)
        self.links.release_unpinned()
        done.attempt("lb_devices", lambda: remove_other_devices(self._devices, devices))
        done.attempt("lb_subnets", lambda: remove_other_subnets(self._subnets, devices))
        return done

    @contextmanager
    def _tc_hooks(self) -> Iterator[TcHooks]:
        with Rtnetlink() as netlink:
            yield TcHooks(
                netlink, self._places.links, self._mode, has_tcx=self._has_tcx, held=self.links
            )

    def _write_hosts(
        self, devices: Iterable[Device], xdp: Mapping[int, XdpWay], done: Applied
    ) -> None:
        done.attempt("lb_devices", lambda: write_devices(self._devices, devices, xdp))
        done.attempt("lb_uplinks", lambda: write_uplinks(self._uplinks, devices, xdp))

    def _serve_xdp(
        self,
        hooks: XdpHooks,
        devices: Iterable[Device],
        ways: Mapping[int, XdpWay],
        done: Applied,
    ) -> Change:
        self.xdp, changes = hooks.apply(ways)
        for device in devices:
            if change := changes.get(device.ifindex):
                done.changes[device.name] = max(change, done.changes.get(device.name, change))
        return Change.KEPT

    def _open_programs(self) -> None:
        has_xdp = (self._places.progs / XDP_PROGRAM).exists()
        for name in (*self._cgroup_hooks, *TC_PROGRAMS, *([XDP_PROGRAM] if has_xdp else [])):
            path = self._places.progs / name
            try:
                self._programs[name] = LoadedProgram.open(path)
            except OSError as error:
                self.close()
                raise PinError(f"{path}: cannot open the program: {error.strerror}") from error

    def _attach_cgroup(self, done: Applied) -> None:
        cgroup = self._places.cgroup
        for name, attach_type in self._cgroup_hooks.items():
            pin, program = self._places.links / name, self._programs[name]
            attach = partial(links.attach_cgroup, pin, cgroup, attach_type, program, self.links)
            done.attempt(name, attach)

    def look_into_pods(self, pods: PodSockets) -> bool:
        """Whether the set of sockets that are left alone has changed: then call `apply()`.

        These are sockets of pods that have opted out or redirect their own traffic, and those of
        other namespaces inside pods.
        """
        self.pods = pods
        differ = self._namespaces.look_inside(pods.tc_only)
        return differ or self._cgroups_of_covered() != self._marked

    def addresses_in(self, cookie: int) -> Collection[Address]:
        """See Namespaces."""
        return self._namespaces.addresses_in(cookie)

    @property
    def has_tc_only_pods(self) -> bool:
        """Whether the sockets of any pod are left alone."""
        return bool(self._namespaces.tc_only)

    def _mark_pods(self, devices: Iterable[Device], served: Collection[int]) -> Change:
        """Cgroups go before their pod's namespace and come after it: below them all others pass."""
        pods = self._pods(devices)
        self._covered = {cookie: each for cookie, each in pods.items() if each.issubset(served)}
        self._namespaces.look_inside(self.pods.tc_only)
        self._marked = self._cgroups_of_covered()
        return max(
            remove_other_pod_cgroups(self._pod_cgroups, self._marked),
            mark_pods(self._netns, self._covered, self._namespaces.tc_only),
            write_pod_cgroups(self._pod_cgroups, self._marked),
        )

    def _cgroups_of_covered(self) -> frozenset[int]:
        uids = self.pods.uids
        addresses = (each for cookie in self._covered for each in self.addresses_in(cookie))
        return self._cgroups.ids({uids[each] for each in addresses if each in uids})

    def _pods(self, devices: Iterable[Device]) -> Mapping[int, set[int]]:
        """The workload devices of each pod, by the cookie of its namespace."""
        kind = DeviceKind.LB_DEVICE_WORKLOAD
        veths = [
            Veth(device.ifindex, device.name, device.netnsid)
            for device in devices
            if device.kind == kind and device.netnsid is not None
        ]
        pods = defaultdict(set)
        for ifindex, cookie in self._namespaces.cookies(veths).items():
            pods[cookie].add(ifindex)
        return pods


def detach_all(pins: Path) -> Applied:
    """Detach all our programs from the node's sockets and the devices of this namespace.

    `pins` is the directory of pinned links; maps and programs stay pinned elsewhere. Idempotent.
    """
    done = Applied()
    if not pins.is_dir():
        return done
    _detach_pins([pins / name for name in reversed(CGROUP_HOOKS)], done)
    xdp = XdpHooks(pins, None)
    for ifindex in sorted(attached(pins)):
        done.attempt(f"device {ifindex}, XDP", partial(_detached, xdp.detach, ifindex))
    with Rtnetlink() as netlink:
        tc = TcHooks(netlink, pins, "auto", has_tcx=True)
        _detach_devices(tc, tc.present(), done)
    _detach_pins(_unknown(pins), done)
    return done


def _detach_devices(tc: TcHooks, ifindexes: Iterable[int], done: Applied) -> None:
    for ifindex in sorted(ifindexes):
        done.attempt(f"device {ifindex}", partial(_detached, tc.detach, ifindex))


def _detach_pins(pins: Iterable[Path], done: Applied) -> None:
    for pin in pins:
        done.attempt(pin.name, partial(_detached, links.detach, pin))


def _detached(detach: Callable[[_Target], bool], target: _Target) -> Change:
    return Change.DETACHED if detach(target) else Change.KEPT


def _unknown(pins: Path) -> list[Path]:
    """Links left by another release of this program."""
    return [path for path in pins.iterdir() if path.is_file() and not is_link_of_ours(path.name)]


def is_link_of_ours(pin: str) -> bool:
    """Whether this version has links of that name, finished or not."""
    pin = pin.removesuffix("_new")
    return bool(pin in CGROUP_HOOKS or TCX_PIN.fullmatch(pin) or XDP_PIN.fullmatch(pin))


def _is_gone(error: EbpflbError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ENODEV

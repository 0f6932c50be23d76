# SPDX-License-Identifier: Apache-2.0
"""Every check of this node's kernel state, one after the other. Nothing is changed.

A check that fails becomes a finding itself; the others still run. Processes are those of this
network namespace and of the pods behind its devices, if they are in our own PID namespace: a
container sees all processes of the node only with the host's PID namespace.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebpflb.dataplane.attach.attachments import pinned_programs
from ebpflb.dataplane.attach.devices import Device, DeviceSettings, NetworkState, snapshot
from ebpflb.dataplane.doctor import pins
from ebpflb.dataplane.doctor.addresses import ADDRESSES, check_addresses, own_addresses
from ebpflb.dataplane.doctor.endpoints import ENDPOINTS, check_endpoints
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.doctor.forward_chain import FORWARD, check_forward_chain
from ebpflb.dataplane.doctor.hooks import (
    DEVICES,
    SOCKETS,
    check_devices,
    check_sockets,
    check_strays,
)
from ebpflb.dataplane.doctor.node import (
    CLOCK,
    KERNEL,
    KUBE_PROXY,
    POLICY,
    SYSCTLS,
    check_clock,
    check_kernel,
    check_kube_proxy,
    check_policy,
    check_sysctls,
)
from ebpflb.dataplane.doctor.pins import FILL, check_maps
from ebpflb.dataplane.explain.reach import Silent
from ebpflb.dataplane.flows.source_ports import Ports, own_ports
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, open_maps
from ebpflb.dataplane.kernel.namespaces import own_inode, peers
from ebpflb.dataplane.kernel.probe import Probe
from ebpflb.dataplane.kernel.rtnetlink import route_to
from ebpflb.dataplane.layout.capacity import MAPS, misfits
from ebpflb.dataplane.layout.enums import DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION, LbNetns, LbSettings
from ebpflb.dataplane.load.pins import LINKS, newest_generation
from ebpflb.errors import EbpflbError, ProbeError

COVERAGE = "coverage"

_PROC = Path("/proc")
_MOVE = (
    "their connections to Services are not load-balanced: set --cgroup-root to a cgroup above them"
)
_UNKNOWN_POD = "its UDP is translated at the socket instead; let the agent see /run/netns"


def check_coverage(cgroup: Path, network: NetworkState, netns: BpfMap) -> list[Finding]:
    workloads = [
        device
        for device in network.devices.values()
        if device.kind == DeviceKind.LB_DEVICE_WORKLOAD
    ]
    netnsids = {each.ifindex: each.netnsid for each in workloads if each.netnsid is not None}
    behind = peers(netnsids)
    outside = outsiders(inside(cgroup), {own_inode(), *behind.values()})
    found = [*judge_processes(cgroup, outside), *judge_pods(workloads, behind, covered(netns))]
    return all_well(COVERAGE, f"every process is inside cgroup {cgroup}", found)


def judge_processes(cgroup: Path, outside: Collection[str]) -> Iterator[Finding]:
    """`outside`: processes, as formatted by outsiders()."""
    if outside:
        count = "1 process is" if len(outside) == 1 else f"{len(outside)} processes are"
        what = f"{count} outside cgroup {cgroup}: {examples(outside)}"
        yield Finding(Severity.WARNING, COVERAGE, "processes", what, _MOVE)


def judge_pods(
    workloads: Iterable[Device], behind: Mapping[int, int], covered: Collection[int]
) -> Iterator[Finding]:
    """`behind`: the namespace behind each device, if found; `covered`: devices."""
    known = {behind[ifindex] for ifindex in covered if ifindex in behind}
    names = [each.name for each in workloads if behind.get(each.ifindex) not in known]
    if names:
        what = "the agent has not found the pod behind it, or serves only one of its devices"
        yield Finding(Severity.NOTE, COVERAGE, examples(names), what, _UNKNOWN_POD)


def covered(netns: BpfMap) -> set[int]:
    """The devices of pods that the programs know to be covered by tc. MapError."""
    known = (LbNetns.from_buffer_copy(value) for _, value in netns.items())
    return {each.ifindex for each in known if each.flags & NetnsFlag.LB_NETNS_COVERED}


def inside(cgroup: Path) -> set[int]:
    """The processes of a cgroup and its descendants; cgroups that vanish meanwhile are empty."""
    found: set[int] = set()
    for directory, _, _ in os.walk(cgroup):
        with suppress(OSError):
            found.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
    return found


def outsiders(
    inside: Collection[int], namespaces: Collection[int], proc: Path = _PROC
) -> list[str]:
    """Processes of these network namespaces that are not inside: "NAME (PID)", sorted by id.

    Kernel threads, which have no command line, are left out.
    """
    found = []
    for pid in sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit()):
        process = proc / str(pid)
        with suppress(OSError):
            if pid in inside or os.stat(process / "ns/net").st_ino not in namespaces:
                continue
            name = (process / "comm").read_text().strip()
            if name and (process / "cmdline").read_bytes():
                found.append(f"{name} ({pid})")
    return found


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The pins, the cgroup of the socket hooks, the patterns of devices, and the NodePorts.

    selector: see check_kube_proxy().
    """

    pins: Path
    cgroup: Path
    devices: DeviceSettings
    node_ports: Ports
    selector: str = ""


def examine(node: NodePaths) -> list[Finding]:
    """All findings, in the order of the checks, for the calling thread's namespace."""
    return [
        *_checked(KERNEL, lambda: check_kernel(Probe())),
        *_checked(pins.CHECK, lambda: pins.check_pins(node.pins)),
        *_check_hooks(node),
        *_checked(SOCKETS, lambda: check_strays(node.pins, node.cgroup)),
        *_checked(KUBE_PROXY, lambda: check_kube_proxy(node.selector)),
        *_checked(CLOCK, check_clock),
    ]


def _check_hooks(node: NodePaths) -> Iterator[Finding]:
    """Checks the devices, and what is loaded."""
    try:
        network = snapshot(node.devices)
    except ProbeError as error:
        yield _failed(DEVICES, error)
        return
    loaded = None
    try:
        loaded = _load(node.pins)
    except (EbpflbError, OSError) as error:
        yield _failed(pins.CHECK, error)
    if loaded:
        yield from _check_loaded(node, network, *loaded)
    maps = loaded[0] if loaded else None
    yield from _checked(SYSCTLS, lambda: _check_sysctls(node, network, maps))
    yield from _checked(FORWARD, lambda: check_forward_chain(network))


def _check_loaded(
    node: NodePaths, network: NetworkState, maps: MapSet, programs: Collection[int]
) -> Iterator[Finding]:
    links = node.pins / LINKS
    yield from _checked(SOCKETS, lambda: check_sockets(node.cgroup, programs))
    yield from _checked(DEVICES, lambda: check_devices(network, links, programs))
    netns = maps["lb_netns"]
    yield from _checked(COVERAGE, lambda: check_coverage(node.cgroup, network, netns))
    yield from _checked(FILL, lambda: check_maps(maps))
    yield from _checked(ADDRESSES, lambda: check_addresses(maps, own_addresses()))
    yield from _checked(ENDPOINTS, lambda: check_endpoints(maps, route_to, Silent.now()))
    yield from _checked(POLICY, lambda: check_policy(network, _settings(maps)))


def _load(root: Path) -> tuple[MapSet, frozenset[int]] | None:
    """The maps and the ids of the programs; None if they cannot be read: check_pins() says why."""
    newest = newest_generation(root)
    if newest is None or newest.layout != LAYOUT_VERSION:
        return None
    maps = open_maps(newest.maps)
    is_readable = maps.keys() >= MAPS.keys() and not misfits(maps)
    return (maps, pinned_programs(newest)) if is_readable else None


def _check_sysctls(node: NodePaths, network: NetworkState, maps: MapSet | None) -> list[Finding]:
    """With the source ports in force, else those that an agent would choose now."""
    settings = _settings(maps) if maps else None
    in_force = settings and [(each.first, each.last) for each in settings.snat_ports]
    return check_sysctls(network, node.node_ports, in_force or own_ports(node.node_ports))


def _settings(maps: MapSet) -> LbSettings | None:
    value = maps["lb_settings"].lookup(bytes(4))
    return LbSettings.from_buffer_copy(value) if value else None


def _checked(check: str, find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(find())
    except (EbpflbError, OSError) as error:
        return [_failed(check, error)]


def _failed(check: str, error: Exception) -> Finding:
    text = " ".join(str(error).split())
    return Finding(Severity.WARNING, check, "", f"could not be checked: {text}")

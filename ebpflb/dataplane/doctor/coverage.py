# SPDX-License-Identifier: Apache-2.0
"""Who is not covered: processes outside the cgroup of the socket hooks, pods not known by veth.

Looked at are the processes of this network namespace and of the pods behind its devices. Seen are
those of the own PID namespace: in a container all of the node's only with the host's.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.namespaces import own_inode, peers
from ebpflb.dataplane.layout.enums import DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import Netns

CHECK = "coverage"

_PROC = Path("/proc")
_PROCS = "cgroup.procs"
_MOVE = "their connections to Services from this node are not translated: give --cgroup-root a "
_MOVE += "cgroup above them"
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
    return all_well(CHECK, f"every process is inside cgroup {cgroup}", found)


def judge_processes(cgroup: Path, outside: Collection[str]) -> Iterator[Finding]:
    """`outside`: processes as they are to be shown."""
    if outside:
        count = "1 process is" if len(outside) == 1 else f"{len(outside)} processes are"
        what = f"{count} outside cgroup {cgroup}: {examples(outside)}"
        yield Finding(Severity.WARNING, CHECK, "processes", what, _MOVE)


def judge_pods(
    workloads: Iterable[Device], behind: Mapping[int, int], covered: Collection[int]
) -> Iterator[Finding]:
    """`behind`: the namespace behind each device, where it was found; `covered`: devices."""
    known = {behind[ifindex] for ifindex in covered if ifindex in behind}
    names = [each.name for each in workloads if behind.get(each.ifindex) not in known]
    if names:
        what = "the agent has not found the pod behind it, or serves only one of its devices"
        yield Finding(Severity.NOTE, CHECK, examples(names), what, _UNKNOWN_POD)


def covered(netns: BpfMap) -> set[int]:
    """The devices of pods that the programs know as covered by tc. MapError."""
    known = (Netns.from_buffer_copy(value) for _, value in netns.items())
    return {each.ifindex for each in known if each.flags & NetnsFlag.LB_NETNS_COVERED}


def inside(cgroup: Path) -> set[int]:
    """The processes of a cgroup and of all below it; one that goes away meanwhile has none."""
    found: set[int] = set()
    for directory, _, _ in os.walk(cgroup):
        found.update(_numbers(Path(directory) / _PROCS))
    return found


def outsiders(
    inside: Collection[int], namespaces: Collection[int], proc: Path = _PROC
) -> list[str]:
    """Processes of these network namespaces that are not inside: "NAME (PID)", by id.

    Kernel threads have no command line and are left out.
    """
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return [
        f"{name} ({pid})"
        for pid in pids
        if pid not in inside
        and _namespace(proc / str(pid)) in namespaces
        and (name := _name(proc / str(pid)))
    ]


def _numbers(path: Path) -> list[int]:
    try:
        return list(map(int, path.read_text().split()))
    except OSError:
        return []


def _namespace(process: Path) -> int:
    try:
        return os.stat(process / "ns/net").st_ino
    except OSError:
        return 0


def _name(process: Path) -> str:
    try:
        if not (process / "cmdline").read_bytes():
            return ""
        return (process / "comm").read_text().strip()
    except OSError:
        return ""

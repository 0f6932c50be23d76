# SPDX-License-Identifier: Apache-2.0
"""Processes outside the cgroup of the socket hooks, and pods that the agent does not know.

The processes are those of this network namespace and of the pods behind its devices, as far as
they are in the own PID namespace: a container sees all of the node's only with the host's.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.namespaces import own_inode, peers
from ebpflb.dataplane.layout.enums import DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LbNetns

CHECK = "coverage"

_PROC = Path("/proc")
_MOVE = (
    "their connections to Services from this node are not translated: give --cgroup-root a cgroup "
    "above them"
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
    return all_well(CHECK, f"every process is inside cgroup {cgroup}", found)


def judge_processes(cgroup: Path, outside: Collection[str]) -> Iterator[Finding]:
    """`outside`: processes as outsiders() names them."""
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
    known = (LbNetns.from_buffer_copy(value) for _, value in netns.items())
    return {each.ifindex for each in known if each.flags & NetnsFlag.LB_NETNS_COVERED}


def inside(cgroup: Path) -> set[int]:
    """The processes of a cgroup and of all below it; one that goes away meanwhile has none."""
    found: set[int] = set()
    for directory, _, _ in os.walk(cgroup):
        with suppress(OSError):
            found.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
    return found


def outsiders(
    inside: Collection[int], namespaces: Collection[int], proc: Path = _PROC
) -> list[str]:
    """Processes of these network namespaces that are not inside: "NAME (PID)", by id.

    Kernel threads have no command line and are left out.
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

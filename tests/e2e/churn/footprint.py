# SPDX-License-Identifier: Apache-2.0
"""What an agent and the kernel hold for a node, and which parts have grown."""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ebpflb.dataplane.view.dump import map_fills
from ebpflb.lab import LabNode
from ebpflb.lab.processes import in_cgroup
from tests.e2e.harness.in_force import pinned_maps
from tests.proc_status import ProcStatus

Footprint = Mapping[str, int]
"""A name for each thing that is counted -> how many; memory in KiB."""

MEMORY, OPEN_MAPS = "resident KiB", "open: bpf-map"
# Python's allocator keeps the memory of a burst for the next one.
_MEMORY_SLACK = 24 * 1024
# Entries in flow tables: left by traffic of the last minutes. The limits allow 80 TCP connections
# per second that are remembered for 4 minutes, with two entries each.
_FLOWS = {
    "lb_conntrack": 40_000,
    "lb_ct_short": 40_000,
    "lb_ct_udp": 40_000,
    "lb_ct_stream": 10_000,
    "lb_ct_dsr": 10_000,
    "lb_stack_nat": 40_000,
    "lb_sockets": 40_000,
    "lb_conn_places": 65_536,
    "lb_connections": 1_000,
    "lb_clients": 1_000,
    "lb_flow_filter": 65_536,
    "lb_histograms": 10_000,
    "lb_turns": 2_048,
}
# Open files that depend on what the agent is doing at the moment.
_FEW = 4
_SLACK = {"lb_peer_filter": 64, "lb_reply_filter": 64, "lb_count_drop": 16, "lb_affinity": 64}


def footprint(node: LabNode) -> Footprint:
    """Of the agent, the only process in its node's cgroup."""
    (pid,) = (each for each in in_cgroup(node.cgroup) if _is_agent(each))
    status = ProcStatus.of(pid)
    pins = sum(len(files) for _, _, files in os.walk(node.bpffs))
    return {
        MEMORY: status.number("VmRSS"),
        "threads": status.number("Threads"),
        "pins": pins,
        **_open_files(pid),
        **{f"entries of {each.name}": each.used for each in map_fills(pinned_maps(node))},
    }


def growth(before: Footprint, after: Footprint) -> dict[str, tuple[int, int]]:
    """Whatever exceeds its previous value by more than its tolerance, with both numbers; memory
    only if given.
    """
    names = before.keys() | after.keys() - {MEMORY}
    pairs = {name: (before.get(name, 0), after.get(name, 0)) for name in names}
    return {name: pair for name, pair in sorted(pairs.items()) if pair[1] > _limit(name, pair[0])}


def _limit(name: str, before: int) -> int:
    if name == MEMORY:
        return before + _MEMORY_SLACK
    if not name.startswith("entries of "):
        return before + _FEW
    table = name.removeprefix("entries of ")
    return max(before, _FLOWS.get(table, 0)) + _SLACK.get(table, 0)


def _is_agent(pid: int) -> bool:
    with suppress(OSError):
        return b"\0run\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _open_files(pid: int) -> Counter[str]:
    """By kind: BPF, netlink sockets, other sockets, files, ..."""
    netlink = {line.split()[9] for line in _lines(f"/proc/{pid}/net/netlink")}
    found = Counter[str]()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            kind, _, rest = os.readlink(path).partition(":")
            if kind == "anon_inode":
                kind = rest
            elif kind == "socket" and rest.strip("[]") in netlink:
                kind = "netlink socket"
            elif kind.startswith("/"):
                kind = "file"
            found[f"open: {kind}"] += 1
    return found


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:]


def shown(found: Footprint) -> str:
    """One line: memory and other resources, and the entries of all maps except those of flows."""
    entries = {name: number for name, number in found.items() if name.startswith("entries of ")}
    flows = sum(entries.get(f"entries of {each}", 0) for each in _FLOWS)
    files = sum(number for name, number in found.items() if name.startswith("open: "))
    return (
        f"{found[MEMORY]} KiB, {found['threads']} threads, {files} open files, "
        f"{found['open: netlink socket']} of netlink, {found['pins']} pins, "
        f"{sum(entries.values()) - flows} entries and {flows} of flows, "
        f"{entries['entries of lb_dest_filter']} in lb_dest_filter"
    )

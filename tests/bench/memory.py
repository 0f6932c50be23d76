# SPDX-License-Identifier: Apache-2.0
"""An agent's memory in steady state, and the cost of additional Services.

All processes in the cgroup of its node count, and there are no others.
"""

import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from ebpflb.dataplane.view.dump import map_fills
from ebpflb.lab import LabNode
from ebpflb.lab.processes import in_cgroup
from tests.bench.change import latencies
from tests.bench.harness import agent, labs, simulated_api
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, limit_row, percentile_row, plain_row
from tests.proc_status import ProcStatus

SERVICES = 1_000
ENDPOINTS = 10
TARGET_MB = 96
FEW_SERVICES = 10
TARGET_MAPS_MIB = 24

GROWTH_SIZES = (1_000, 10_000, 44_000)
SIZES = (100, 1_000, 5_000, 10_000, 44_000)
GROWTH_ENDPOINTS = 6
CHANGES = 500
TARGET_FIRST_SECONDS = 20
TARGET_RESTART_SECONDS = 10
TARGET_GROWTH_MB = 262
TARGET_MS = 10

_STEADY_SECONDS = 10.0


def run(options: Options) -> Iterator[Row]:
    """A start that compiles, then one that finds its pins: both are steady states.

    Then the maps of a node of a small cluster, as the kernel reports their memory.
    """
    services = options.scaled(SERVICES)
    with labs.one_node(services, ENDPOINTS) as (node, directory):
        for start in ("first start", "restart"):
            with agent.running(node, directory):
                time.sleep(min(_STEADY_SECONDS, 5 * options.seconds))
                case = f"resident, {services:,} Services x {ENDPOINTS}, {start}"
                resident = resident_megabytes(node)
            yield limit_row("memory", case, [resident], "MB", TARGET_MB)
    with labs.one_node(FEW_SERVICES, ENDPOINTS) as (node, directory):
        with agent.running(node, directory):
            maps = sum(each.memory for each in map_fills(agent.pinned_maps(node))) / (1 << 20)
        case = f"BPF maps, {FEW_SERVICES} Services x {ENDPOINTS}"
        yield limit_row("memory", case, [maps], "MiB", TARGET_MAPS_MIB)


def growth(options: Options) -> Iterator[Row]:
    """Three sizes: does the cost of a Service grow with their number? All limits are the largest's.

    Then the memory of one more Service, from each size to the next.
    """
    resident = {}
    for size in map(options.scaled, GROWTH_SIZES):
        resident[size] = yield from _size(size, options)
    for few, many in zip(resident, list(resident)[1:], strict=False):
        each = 1000 * (resident[many] - resident[few]) / (many - few)
        yield plain_row("growth", f"resident, one more Service, {few:,} to {many:,}", each, "kB")


def sizing(options: Options) -> Iterator[Row]:
    """The resources of an agent that follows an API server, in clusters of five sizes."""
    for services in map(options.scaled, SIZES):
        case = f"{services:,} Services x {GROWTH_ENDPOINTS}"
        with (
            labs.one_node(0, 0) as (node, _),
            simulated_api.serving(node, services, GROWTH_ENDPOINTS, labs.NODES) as url,
        ):
            began = time.perf_counter()
            with agent.following(node, url):
                took = time.perf_counter() - began
                yield plain_row("sizing", f"start to in sync, {case}", took, "s")
                yield plain_row(
                    "sizing", f"processor time of that, {case}", used_seconds(node), "s"
                )
                time.sleep(min(_STEADY_SECONDS, 5 * options.seconds))
                resident, most = resident_megabytes(node), resident_megabytes(node, "VmHWM")
                yield plain_row("sizing", f"resident, {case}", resident, "MB")
                yield plain_row("sizing", f"most ever resident, {case}", most, "MB")
                maps = sum(each.memory for each in map_fills(agent.pinned_maps(node))) / 1e6
                yield plain_row("sizing", f"BPF maps, {case}", maps, "MB")


def _size(services: int, options: Options) -> Generator[Row, None, float]:
    """Returns the resident MB after a restart."""
    case = f"{services:,} Services x {GROWTH_ENDPOINTS}"
    with labs.one_node(services, GROWTH_ENDPOINTS) as (node, directory):
        began = time.perf_counter()
        with agent.running(node, directory):
            first = time.perf_counter() - began
        yield limit_row("growth", f"first sync, {case}", [first], "s", TARGET_FIRST_SECONDS)
        began = time.perf_counter()
        with agent.running(node, directory):
            restart = time.perf_counter() - began
            yield limit_row("growth", f"pins match, {case}", [restart], "s", TARGET_RESTART_SECONDS)
            time.sleep(min(_STEADY_SECONDS, 5 * options.seconds))
            resident = resident_megabytes(node)
            yield limit_row("growth", f"resident, {case}", [resident], "MB", TARGET_GROWTH_MB)
            yield plain_row(
                "growth", f"kept of what is served, {case}", _kept_kilobytes(node), "kB"
            )
            maps, changes = agent.pinned_maps(node), options.scaled(CHANGES)
            times = list(latencies(maps, directory, [0] * services, changes, GROWTH_ENDPOINTS))
            yield percentile_row("growth", f"one endpoint, {case}", times, 99, "ms", TARGET_MS)
    return resident


def _kept_kilobytes(node: LabNode) -> float:
    """The size of the files with what is served, of one agent."""
    directory = node.query_socket.parent / "flows/served"
    return sum(each.stat().st_size for each in directory.iterdir()) / 1000


def resident_megabytes(node: LabNode, field: str = "VmRSS") -> float:
    """Resident memory of all processes in the cgroup of a node; `field`: of /proc/PID/status."""
    return sum(_megabytes_of(pid, field) for pid in in_cgroup(node.cgroup))


def used_seconds(node: LabNode) -> float:
    """Seconds of processor time of the processes of a node and their children."""
    return sum(map(_used_by, in_cgroup(node.cgroup)))


def _used_by(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _megabytes_of(pid: int, field: str) -> float:
    status = ProcStatus.of(pid)
    return status.number(field) * 1024 / 1e6 if field in status else 0.0

# SPDX-License-Identifier: Apache-2.0
"""The kernel time of ebpflb's programs for a new TCP connection, on every path.

    make bench ARGS='programs_live'
    make bench ARGS='programs_live --other DIR --rounds 5 --only "1 Service"'   in turns, a minute
    make bench ARGS='programs_live --other DIR --only "NodePort, pod on the other node, 1 Service"'

A program's figure is runs per connection x nanoseconds per run; the result is the sum over all
programs of all nodes. See harness/kernel_time.py for how that is read.

The filters for replies are never cleared. So the direct paths come first, and once more after
their pod has been used through NodePorts of both nodes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ebpflb.lab import Lab
from tests.bench.cilium import world
from tests.bench.harness import kernel_time, labs, load, manifests
from tests.bench.harness.kernel_time import KernelTime, Programs
from tests.bench.harness.load import Client, Server
from tests.bench.harness.manifests import Document
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, ratio_row
from tests.bench.harness.rounds import Comparison, in_turns, span
from tests.bench.harness.ways import Way

SERVICES = 10_000

_FAR = 1
_PODS = (0, _FAR)
_BENCH = "programs_live"
_OURS, _OTHER, _CILIUM = "ours", "other", "Cilium"
_WAYS = (
    Way("straight, pod to pod", "pod-1-1", _FAR, labs.straight(_FAR), None),
    Way("straight, outside to pod", "client", 0, labs.straight(0), None),
    Way("pod to ClusterIP", "pod-1-1", _FAR, labs.cluster_ip(_FAR), None),
    Way("host to ClusterIP", labs.NODES[0], _FAR, labs.cluster_ip(_FAR), None),
    Way("NodePort, pod on that node", "client", 0, labs.node_port(0), None),
    Way("NodePort, pod on the other node", "client", _FAR, labs.node_port(_FAR), None),
)
_EAST_WEST_LATER = (
    Way("after NodePorts: straight, pod to pod", "pod-1-1", _FAR, labs.straight(_FAR), None),
    Way("after NodePorts: pod to ClusterIP", "pod-1-1", _FAR, labs.cluster_ip(_FAR), None),
)
_NODE_PORT_SECONDS = 0.05


class _Side(NamedTuple):
    """A lab, and how to open the programs to measure."""

    lab: Lab
    programs: Programs


def run(options: Options) -> Iterator[Row]:
    """With one Service for each of the two pods, and among many; next to Cilium if it is
    available.
    """
    for services in _sizes(options):
        with labs.lab("bench-ours") as lab, ExitStack() as stack:
            stack.enter_context(labs.served(lab, max(services, len(_PODS)), _PODS))
            sides = {_OURS: _ours(lab)}
            if world.is_at_hand():
                made = stack.enter_context(world.up(partial(_objects, services=services)))
                sides[_CILIUM] = _Side(made.lab, made.programs)
            yield from _rows(sides, services, options)
    if not world.is_at_hand():
        yield Row(_BENCH, f"beside {_CILIUM}", "", world.MISSING)


def run_beside(other: Path, options: Options) -> Iterator[Row]:
    """This checkout and another one in turns, each in its own lab, with the same number of
    Services.
    """
    for services in _sizes(options):
        count = max(services, len(_PODS))
        with (
            labs.bare_pair() as pair,
            labs.served(pair.ours, count, _PODS),
            chdir(other),
            labs.served(pair.other, count, _PODS),
        ):
            sides = {_OURS: _ours(pair.ours), _OTHER: _ours(pair.other)}
            yield from _rows(sides, services, options)


def _sizes(options: Options) -> list[int]:
    """The numbers of Services, in turn, without those of which no case is wanted."""
    return [count for count in (1, options.scaled(SERVICES)) if list(_chosen(count, options))]


def _ours(lab: Lab) -> _Side:
    return _Side(lab, partial(kernel_time.pinned, lab))


def _objects(lab: Lab, services: int) -> Iterator[tuple[Document, Document]]:
    """The same Services as those of labs.served()."""
    for number in _PODS:
        yield labs.target_objects(lab, number)
    for number in range(services - len(_PODS)):
        name, pods = manifests.name_of(number), manifests.pods(number, 1)
        yield manifests.service(name, ""), manifests.endpoint_slice(name, pods, labs.NODES)


def _chosen(services: int, options: Options) -> Iterator[tuple[str, Way]]:
    """The selected paths, each with its case."""
    for way in (*_WAYS, *_EAST_WEST_LATER):
        case = f"{way.case}, {services:,} Service{'s' * (services > 1)}"
        if options.only in case:
            yield case, way


def _rows(sides: Mapping[str, _Side], services: int, options: Options) -> Iterator[Row]:
    with kernel_time.counted():
        for case, way in _chosen(services, options):
            if way in _EAST_WEST_LATER:
                for side in sides.values():
                    _use_node_ports(side.lab)
            with ExitStack() as stack:
                measures = {
                    name: partial(stack.enter_context(_measuring(side, way)), options.seconds)
                    for name, side in sides.items()
                }
                found = kernel_time.net(in_turns(measures, options.rounds))
            yield from (_compared if _OTHER in sides else _told)(case, found)


def _use_node_ports(lab: Lab) -> None:
    with load.serving(labs.pod(lab, _FAR), Server.ANSWER) as server:
        for node in labs.NODES:
            goal = labs.node_port(_FAR, node)(lab)
            load.run(lab.client, Client.ASK, goal, server, _NODE_PORT_SECONDS)


@contextmanager
def _measuring(side: _Side, way: Way) -> Iterator[Callable[[float], KernelTime]]:
    """Have the pod serve; yields a function that measures for that many seconds."""
    lab = side.lab
    pod = labs.pod(lab, way.pod)
    with (
        load.serving(pod, Server.ANSWER) as server,
        kernel_time.clocks_at(pod) as clocks,
    ):
        goal = way.frontend(lab)
        connect = partial(load.run, lab.member(way.source), Client.ASK, goal, server)
        yield lambda seconds: kernel_time.measured(side.programs, clocks, partial(connect, seconds))


def _told(case: str, found: Mapping[str, Sequence[KernelTime]]) -> Iterator[Row]:
    """A row for each side."""
    for side, times in found.items():
        ns = span([time.ns for time in times])
        programs = ", ".join(f"{name} {_runs(times, name)}" for name in _names(times))
        result = f"{ns.median:,.0f} ns ({ns.low:,.0f} to {ns.high:,.0f})"
        yield Row(_BENCH, case if side == _OURS else f"{case}: {side}", programs, result)


def _compared(case: str, found: Mapping[str, Sequence[KernelTime]]) -> Iterator[Row]:
    """A row for each program of two checkouts, and one for the sum."""
    ours, other = found[_OURS], found[_OTHER]
    for name in _names([*ours, *other]):
        measured = f"{_runs(ours, name)} of {_runs(other, name)}"
        yield Row(_BENCH, f"{case}: {name}", measured, "")
    sums = Comparison([time.ns for time in ours], [time.ns for time in other])
    yield ratio_row(_BENCH, case, sums, "ns", None)


def _names(times: Sequence[KernelTime]) -> list[str]:
    return sorted({name for time in times for name in time.programs})


def _runs(times: Sequence[KernelTime], name: str) -> str:
    """A program's runs per connection, and nanoseconds per run."""
    runs = median(time.runs_of(name) for time in times)
    ns = median(time.ns_of(name) for time in times)
    return f"{runs:.2f} x {ns / runs if runs else 0:,.0f}"

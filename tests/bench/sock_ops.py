# SPDX-License-Identifier: Apache-2.0
"""The cost of counting connections at the socket: new ones with lb_sock_ops, and without.

In one lab and one run, where the program is attached and detached in turns.
"""

from collections.abc import Callable, Iterator
from contextlib import closing

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, LoadedProgram
from ebpflb.dataplane.load.pins import LINKS, newest_generation
from ebpflb.lab import LabNode
from tests.bench.harness import labs, manifests, ways
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

TARGET = 0.97

_NAME = "lb_sock_ops"
_FAR = 1


def run(options: Options) -> Iterator[Row]:
    """From a pod to a pod on the other node."""
    place = (labs.CLUSTER_IPS[_FAR], manifests.PORT)
    way = Way("pod to ClusterIP, with it and without", "pod-1-1", _FAR, lambda _: place, TARGET)
    with labs.left_pair([_FAR]) as pair:
        node = pair.ours.node(labs.NODES[0])
        with closing(_program(node)) as program:
            switch = _switch(node, program)
            yield ways.switched("sock_ops", pair.ours, way, ways.CONNECT_RATE, switch, options)


def _program(node: LabNode) -> LoadedProgram:
    generation = newest_generation(node.bpffs)
    if generation is None:
        raise BenchError(f"{node.name}: nothing is pinned below {node.bpffs}")
    return LoadedProgram.open(generation.progs / _NAME)


def _switch(node: LabNode, program: LoadedProgram) -> Callable[[bool], None]:
    pin = node.bpffs / LINKS / _NAME

    def switch(on: bool) -> None:
        if on:
            links.attach_cgroup(pin, node.cgroup, CGROUP_HOOKS[_NAME], program)
        else:
            links.detach(pin)

    return switch

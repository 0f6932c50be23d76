# SPDX-License-Identifier: Apache-2.0
"""The cost of attached programs alone: new TCP connections directly to a pod, with programs that
return at once at all of ebpflb's hooks, compared with no programs.

ebpflb's own work comes on top: no path through its programs can be closer to no programs than this.
"""

from collections.abc import Iterator

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.pins import LINKS
from ebpflb.lab import LabNode
from tests.bench.harness import labs, nothing, ways
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

_FAR = 1


def run(options: Options) -> Iterator[Row]:
    """The direct paths of the benches `connect` and `nodeport`."""
    with labs.left_pair([_FAR]) as pair:
        for name in labs.NODES:
            _empty(pair.ours.node(name))
        for case, source, pod in (
            ("pod to a pod on the other node", "pod-1-1", _FAR),
            ("host to a pod on the other node", labs.NODES[0], _FAR),
            ("outside to a pod", "client", 0),
        ):
            way = Way(case, source, pod, labs.straight(pod), target=None)
            yield ways.in_both("attached", pair, way, ways.CONNECT_RATE, options)


def _empty(node: LabNode) -> None:
    """Replace every link's program on a node by one that returns at once."""
    for pin in (node.bpffs / LINKS).iterdir():
        with owned(libbpf.obj_get(pin)) as link, owned(_program_like(link)) as program:
            libbpf.link_update(link, program)


def _program_like(link: int) -> int:
    """A program for the link's attach point that accepts every packet."""
    with owned(libbpf.prog_by_id(libbpf.link_info(link).prog_id)) as found:
        kind, attach_type, _ = PROGRAMS[libbpf.prog_info(found).name.decode()]
    return nothing.load(kind, attach_type or 0)

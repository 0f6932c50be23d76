# SPDX-License-Identifier: Apache-2.0
"""An agent on a node of a lab, with manifests of the bench's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.load.pins import newest_generation
from ebpflb.lab import LabNode
from ebpflb.lab.member import NodeAgent
from tests.bench.harness.options import BenchError


@contextmanager
def running(node: LabNode, manifests: Path, options: Sequence[str] = ()) -> Iterator[NodeAgent]:
    """An agent that is in sync. It ends afterwards; its pins stay until the lab goes."""
    with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        agent = NodeAgent(node, Path(directory) / "log", ["--manifests", str(manifests), *options])
        try:
            agent.start()
            agent.wait_in_sync()
            yield agent
            if not agent.is_running():
                raise BenchError(f"{node.name}: the agent has ended: {agent.said()[-200:]}")
        finally:
            agent.kill()


def pinned_maps(node: LabNode) -> MapSet:
    """The maps of the agent of a node."""
    generation = newest_generation(node.bpffs)
    if generation is None:
        raise BenchError(f"{node.name}: nothing is pinned below {node.bpffs}")
    return open_maps(generation.maps)

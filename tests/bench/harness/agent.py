# SPDX-License-Identifier: Apache-2.0
"""An agent on a node of a lab, with the bench's own manifests."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.load.pins import newest_generation
from ebpflb.lab import LabNode
from ebpflb.lab.member import NodeAgent
from tests.bench.harness.options import BenchError


class ApiAgent(NodeAgent):
    """One that follows an API server instead of the manifests of its lab."""

    def command(self) -> list[str]:
        return ["env", "-u", "EBPFLB_MANIFESTS", *super().command()]


class ComparingAgent(NodeAgent):
    """One that compares everything again a second after it has done so, not after an hour."""

    def command(self) -> list[str]:
        code = (
            "from ebpflb.agent import loop; from ebpflb.cli import main; "
            "loop.COMPARE_SECONDS = 1.0; main()"
        )
        _, _, _, *arguments = super().command()
        return [sys.executable, "-c", code, *arguments]


def running(
    node: LabNode, manifests: Path, options: Sequence[str] = ()
) -> AbstractContextManager[NodeAgent]:
    """An agent that is in sync. It is stopped afterwards; its pins remain until the lab is
    removed.
    """
    return _running(NodeAgent, node, ["--manifests", str(manifests), *options])


def comparing(
    node: LabNode, manifests: Path, options: Sequence[str] = ()
) -> AbstractContextManager[NodeAgent]:
    """The same agent, busy with comparing its maps and Services."""
    return _running(ComparingAgent, node, ["--manifests", str(manifests), *options])


def following(node: LabNode, url: str) -> AbstractContextManager[NodeAgent]:
    """The same with an API server."""
    return _running(ApiAgent, node, ["--master", url])


@contextmanager
def _running(kind: type[NodeAgent], node: LabNode, options: Sequence[str]) -> Iterator[NodeAgent]:
    with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        agent = kind(node, Path(directory) / "log", options)
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

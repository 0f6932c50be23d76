# SPDX-License-Identifier: Apache-2.0
"""Agents on the nodes of a lab: `ebpflb run` as an operator would start it."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ebpflb.errors import EbpflbError
from ebpflb.lab.cluster import Lab
from ebpflb.lab.member import LabNode

_IN_SYNC = "in sync"
# The programs are compiled: 20 s of a slow core, and many labs may be made at once.
_START_TIMEOUT = 150.0
_STOP_TIMEOUT = 10.0
_LOOK_SECONDS = 0.01


class NodeAgent:
    """The agent of one node. Its log goes to a file; what it pinned stays when it ends."""

    def __init__(self, node: LabNode, log: Path, options: Sequence[str] = ()) -> None:
        self.node = node
        self.log = log
        self._options = options
        self._process: subprocess.Popen[Any] | None = None
        self._read_from = 0

    def start(self) -> None:
        """Start the process; `wait_in_sync()` says when it has programmed its node."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "ebpflb", "run", *self._options]
            self._process = self.node.popen(command, stdout=output, stderr=output)

    def wait_in_sync(self) -> None:
        """Return once it has said so. EbpflbError with its last line when it does not."""
        deadline = time.monotonic() + _START_TIMEOUT
        while _IN_SYNC not in self.said():
            if not self.is_running() or time.monotonic() > deadline:
                last = (self.said().splitlines() or ["it said nothing"])[-1]
                raise EbpflbError(f"{self.node.name}: the agent is not in sync: {last}")
            time.sleep(_LOOK_SECONDS)

    def said(self) -> str:
        with self.log.open("rb") as output:
            output.seek(self._read_from)
            return output.read().decode(errors="replace")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise EbpflbError(f"{self.node.name}: the agent did not stop") from None


@contextlib.contextmanager
def running_agents(
    lab: Lab, directory: Path, options: Sequence[str] = ()
) -> Iterator[dict[str, NodeAgent]]:
    """An agent in sync on every node, by the node's name; stopped at the end."""
    agents = {
        node.name: NodeAgent(node, directory / f"agent-{node.name}.log", options)
        for node in lab.nodes
    }
    try:
        for agent in agents.values():
            agent.start()
        for agent in agents.values():
            agent.wait_in_sync()
        yield agents
    finally:
        for agent in agents.values():
            agent.kill()

# SPDX-License-Identifier: Apache-2.0
"""An agent on a node of a lab, with manifests of the bench's own."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ebpflb.dataplane.maps import MapSet, open_maps
from ebpflb.dataplane.pins import newest_generation
from ebpflb.lab import Node
from tests.bench.options import BenchError

_COMMAND = (sys.executable, "-m", "ebpflb", "run")
_IN_SYNC = "in sync"
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Agent:
    """A running agent that has said it is in sync; `start_seconds`: how long that took."""

    node: Node
    process: "subprocess.Popen[Any]"
    start_seconds: float

    def maps(self) -> MapSet:
        """Its pinned maps."""
        generation = newest_generation(self.node.bpffs)
        if generation is None:
            raise BenchError(f"{self.node.name}: nothing is pinned below {self.node.bpffs}")
        return open_maps(generation.maps)


@contextmanager
def running(node: Node, manifests: Path) -> Iterator[Agent]:
    """Start an agent and wait until it is in sync; end it afterwards. Its pins stay."""
    with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        log = Path(directory) / "log"
        begin = time.perf_counter()
        with log.open("wb") as output:
            argv = [*_COMMAND, "--manifests", str(manifests)]
            process = node.popen(argv, stdout=output, stderr=output)
        try:
            _wait_in_sync(node, process, log)
            yield Agent(node, process, time.perf_counter() - begin)
            if process.poll() is not None:
                raise BenchError(f"{node.name}: the agent has ended: {_last_line(log)}")
        finally:
            _end(process)


def _wait_in_sync(node: Node, process: "subprocess.Popen[Any]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while _IN_SYNC not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{node.name}: the agent is not in sync: {_last_line(log)}")
        time.sleep(_LOOK_SECONDS)


def _last_line(log: Path) -> str:
    return (log.read_text().splitlines() or ["it said nothing"])[-1]


def _end(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

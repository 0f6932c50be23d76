# SPDX-License-Identifier: Apache-2.0
"""How long `kubectl ebpflb` takes with 200 nodes, and its memory.

Another process is the API server and all agents: each command takes as long as on a node, and
answers with as much as it does in a cluster with so many Services.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, limit_row
from tests.unit.kubectl import answers
from tests.unit.kubectl.api_server import Objects, Output, node, pod, served, write_kubeconfig

NODES, BACKENDS = 200, 10
# As long as `ebpflb status` takes on a node.
COMMAND_SECONDS = 0.4

_BENCH = "many_nodes"
_COMMANDS = ("flows -A", "status", "doctor", "services -A", "top -A --interval 0.1")
# Those whose answers grow with the Services.
_GROWING = _COMMANDS[3:]
_PLUGIN = "from ebpflb.kubectl import main; main()"


class _Ran(NamedTuple):
    seconds: float
    megabytes: float


def run(options: Options) -> Iterator[Row]:
    """Two rows for each command."""
    yield from _rows(options, _COMMANDS, services=100, rounds=5)
    yield from _rows(options, _GROWING, services=1000, rounds=1)


def _rows(
    options: Options, commands: Sequence[str], *, services: int, rounds: int
) -> Iterator[Row]:
    nodes, services = options.scaled(NODES), options.scaled(services)
    with TemporaryDirectory() as folder, _cluster(nodes, services) as url:
        kubeconfig = write_kubeconfig(Path(folder) / "kubeconfig", url)
        for command in commands:
            case = f"{command.split()[0]}, {nodes} nodes, {services:,} Services"
            found = [_run([*command.split(), "--timeout=60"], kubeconfig) for _ in range(rounds)]
            yield limit_row(_BENCH, case, [each.seconds for each in found], "s", 5)
            yield limit_row(_BENCH, case, [each.megabytes for each in found], "MB", 300)


def _run(command: Sequence[str], kubeconfig: Path) -> _Ran:
    argv = [sys.executable, "-c", _PLUGIN, *command, "-o", "json", f"--kubeconfig={kubeconfig}"]
    begun = time.monotonic()
    # Not by subprocess, which does not tell the memory of one child.
    with open(os.devnull, "w") as nowhere:
        actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        child = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise BenchError(f"kubectl ebpflb {' '.join(command)} failed")
    return _Ran(time.monotonic() - begun, usage.ru_maxrss / 1000)


@contextmanager
def _cluster(nodes: int, services: int) -> Iterator[str]:
    """The URL of the API server."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(theirs, nodes, services)
    )
    process.start()
    # So that its end is noticed.
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join()


def _serve(parent: Connection, nodes: int, services: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    objects = Objects()
    objects.lists["/api/v1/pods"] = list(map(pod, names))
    objects.lists["/api/v1/nodes"] = list(map(node, names))
    told = {key: Output(text) for key, text in _answers(services).items()}

    def command(_: str, argv: Sequence[str]) -> Output:
        time.sleep(COMMAND_SECONDS)
        return told[argv[1]]

    objects.command = command
    with served(objects) as url:
        parent.send(url)
        parent.recv()


def _answers(services: int) -> dict[str, str]:
    """Command -> what it prints. Each Service has a ClusterIP and a NodePort."""
    addresses = [f"10.1.{number}.7" for number in range(BACKENDS)]
    frontends = [
        answers.frontend(*addresses, address=f"{prefix}.{number >> 8}.{number & 255}")
        for number in range(services)
        for prefix in ("10.96", "192.0")
    ]
    backends = [answers.backend(address, 1.0) for address in addresses]
    carried = [answers.service(*backends, name=f"web-{number}") for number in range(services)]
    findings = [
        answers.finding("ok", f"check {number} is well", str(number)) for number in range(30)
    ]
    return {
        "flows": answers.lines(*map(answers.flow, range(20))),
        "status": json.dumps(answers.status(), indent=2),
        "maps": json.dumps(frontends, indent=2),
        "top": json.dumps({"seconds": 0.1, "services": carried}, indent=2),
        "doctor": json.dumps({"healthy": True, "findings": findings}, indent=2),
    }

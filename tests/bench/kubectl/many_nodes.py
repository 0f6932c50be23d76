# SPDX-License-Identifier: Apache-2.0
"""The time of `kubectl ebpflb` commands with 200 nodes, and their memory.

Another process is the API server and all agents: each command takes as long as on a node, and its
reply is as large as in a cluster with that many Services. A node has traffic of some of them, or,
in the worst case, of each with each of its backends.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ebpflb.model.compact import compact
from ebpflb.model.compact.frontends import FrontendRow
from ebpflb.model.compact.rates import PortRow
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, limit_row
from tests.unit.kubectl import answers
from tests.unit.kubectl.api_server import Objects, Output, node, pod, served, write_kubeconfig

NODES, BACKENDS = 200, 10
# The number of Services with traffic on a node, unless all have traffic.
CALLED = 50
# The seconds that `ebpflb top` has counted.
SECONDS = 2.003
# The time of `ebpflb status` on a node.
COMMAND_SECONDS = 0.4

_BENCH = "many_nodes"
_COMMANDS = ("flows -A", "status", "doctor", "services -A", "top -A --interval 0.1")
# Commands whose replies grow with the Services.
_GROWING = _COMMANDS[3:]
_PLUGIN = "from ebpflb.kubectl import main; main()"


Answer = dict[str, Any]


class _Ran(NamedTuple):
    seconds: float
    megabytes: float


def run(options: Options) -> Iterator[Row]:
    """Two rows for each command."""
    yield from _rows(options, _COMMANDS, services=100, called=CALLED, rounds=5)
    yield from _rows(options, _GROWING, services=1000, called=CALLED, rounds=5)
    yield from _rows(options, _GROWING, services=1000, called=1000, rounds=5)


def _rows(
    options: Options, commands: Sequence[str], *, services: int, called: int, rounds: int
) -> Iterator[Row]:
    nodes, services, called = map(options.scaled, (NODES, services, called))
    with TemporaryDirectory() as folder, _cluster(nodes, services, called) as url:
        kubeconfig = write_kubeconfig(Path(folder) / "kubeconfig", url)
        for command in commands:
            size = f"{nodes} nodes, {services:,} Services, {called:,} called"
            case = f"{command.split()[0]}, {size}"
            found = [_run([*command.split(), "--timeout=60"], kubeconfig) for _ in range(rounds)]
            yield limit_row(_BENCH, case, [each.seconds for each in found], "s", 5)
            yield limit_row(_BENCH, case, [each.megabytes for each in found], "MB", 150)


def _run(command: Sequence[str], kubeconfig: Path) -> _Ran:
    argv = [sys.executable, "-c", _PLUGIN, *command, "-o", "json", f"--kubeconfig={kubeconfig}"]
    begun = time.monotonic()
    # Not by subprocess, which does not report the memory of one child.
    with open(os.devnull, "w") as nowhere:
        actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        child = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise BenchError(f"kubectl ebpflb {' '.join(command)} failed")
    return _Ran(time.monotonic() - begun, usage.ru_maxrss / 1000)


@contextmanager
def _cluster(nodes: int, services: int, called: int) -> Iterator[str]:
    """The URL of the API server."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(theirs, nodes, services, called)
    )
    process.start()
    # So that its exit is noticed.
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join()


def _serve(parent: Connection, nodes: int, services: int, called: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    objects = Objects()
    objects.lists["/api/v1/pods"] = list(map(pod, names))
    objects.lists["/api/v1/nodes"] = list(map(node, names))
    everywhere = _everywhere()
    told = {
        f"ebpflb-{name}": {**everywhere, **on_node(number, nodes, services, called)}
        for number, name in enumerate(names)
    }

    def command(pod: str, argv: Sequence[str]) -> Output:
        time.sleep(COMMAND_SECONDS)
        words = " ".join(argv[1:3])
        return Output(told[pod].get(words) or told[pod][argv[1]])

    objects.command = command
    with served(objects) as url:
        parent.send(url)
        parent.recv()


def _everywhere() -> dict[str, str]:
    """Command -> its output on every node."""
    findings = [
        answers.finding("ok", f"check {number} is well", str(number)) for number in range(30)
    ]
    return {
        "flows": answers.lines(*map(answers.flow, range(20))),
        "status": json.dumps(answers.status(), indent=2),
        "doctor": json.dumps({"healthy": True, "findings": findings}, indent=2),
    }


def on_node(node: int, nodes: int, services: int, called: int) -> dict[str, str]:
    """Command -> its output on one node, which has traffic of some Services."""
    busy = {(node * called + each) % services for each in range(called)}
    frontends: list[FrontendRow] = []
    ports: list[PortRow] = []
    for number in range(services):
        frontends += _frontends(number, is_busy=number in busy)
        here = tuple(each for each in range(BACKENDS) if (number * BACKENDS + each) % nodes == node)
        ports.append(_port(number, here, is_busy=number in busy))
    return {
        "services --compact": compact(frontends),
        "top --compact": compact(ports),
    }


@cache
def _port(number: int, here: Sequence[int], *, is_busy: bool) -> PortRow:
    """`here`: the backends on the node."""
    (row,) = answers.port_rows(_carrying(number, here, is_busy=is_busy))
    return row


def _carrying(number: int, here: Sequence[int] = (), *, is_busy: bool) -> Answer:
    """A Service with traffic to each of its backends, or without any."""
    connections, kilobytes = (number % 7 + 1, 1000 / SECONDS) if is_busy else (0, 0)
    backends = [
        answers.backend(
            address,
            connections / SECONDS,
            local=each in here,
            active=connections,
            failed=0,
            original_bytes=connections * kilobytes,
            reply_bytes=connections * kilobytes * 10,
        )
        for each, address in enumerate(_addresses(number))
    ]
    sums = dict.fromkeys(("refused", "dropped", "retransmits", "failed"), 0.0)
    sums |= {
        name: sum(each[name] for each in backends)
        for name in ("active", "original_bytes", "reply_bytes")
    }
    far = 1 - len(here) / BACKENDS if is_busy else None
    found: Answer = answers.service(*backends, name=f"web-{number}", far=far, **sums)
    return found


@cache
def _frontends(number: int, *, is_busy: bool) -> Sequence[FrontendRow]:
    """A ClusterIP and a NodePort of a Service."""
    counts = (2, 4, 1, 0) if is_busy else (0, 0, 0, 0)
    return [
        answers.frontend(
            *_addresses(number),
            address=f"{prefix}.{number >> 8}.{number & 255}",
            service=f"web-{number}",
            counts=counts,
        )
        for prefix in ("10.96", "192.0")
    ]


def _addresses(service: int) -> list[str]:
    """Of its backends."""
    return [f"10.{each}.{service >> 8}.{service & 255}" for each in range(BACKENDS)]

# SPDX-License-Identifier: Apache-2.0
"""What a question costs a node: a command that is executed there, or an answer of its agent.

1,000 Services with ten endpoints each.
"""

import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ebpflb.config.options import OBSERVE_PORT
from ebpflb.lab import LabNode
from ebpflb.lab.processes import in_cgroup
from ebpflb.relay.exchange import Exchange
from ebpflb.web.tls import mutual_client
from ebpflb.words.observe import AGENT, RELAY
from tests.bench.harness import agent, labs
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, plain_row
from tests.bench.memory import resident_megabytes, used_seconds
from tests.certificates import Authority

SERVICES, ENDPOINTS, TIMES = 1_000, 10, 20

_BENCH = "questions"
_INTERVAL = 0.1
_PATIENCE_SECONDS = 30.0
# Command and options, and the same as the relay asks.
_QUESTIONS = {
    "services": (("services", "--compact"), "/v1/services"),
    "top": (("top", "--compact", f"--interval={_INTERVAL}"), f"/v1/top?interval={_INTERVAL}"),
    "flows": (("flows", "-o", "jsonl", "--last=100"), "/v1/flows?limit=100"),
    "connections": (("connections", "-o", "jsonl"), "/v1/connections"),
}
# A child's memory is at least that of who has started it: so that is a small process.
_USED = """
import os, resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


class _Cost(NamedTuple):
    """Of one question. megabytes: more than before, at most."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def run(options: Options) -> Iterator[Row]:
    """Three rows for each question and way."""
    services, times = options.scaled(SERVICES), options.scaled(TIMES)
    with (
        TemporaryDirectory() as folder,
        labs.one_node(services, ENDPOINTS) as (node, manifests),
    ):
        authority = Authority(Path(folder) / "authority")
        own = authority.issue(Path(folder) / "agent", AGENT, dns=AGENT)
        theirs = authority.issue(Path(folder) / "relay", RELAY)
        listening = [f"--observe-bind-address=:{OBSERVE_PORT}", f"--observe-tls-directory={own}"]
        with agent.running(node, manifests, listening):
            for name, (command, target) in _QUESTIONS.items():
                case = f"{name}, {services:,} Services"
                executed = _executed(node, command)
                yield from _rows(f"{case}, executed", executed)
                asked = _asked(node, theirs, target, times)
                yield from _rows(f"{case}, of the agent", asked)


def _rows(case: str, cost: _Cost) -> Iterator[Row]:
    yield plain_row(_BENCH, f"{case}: time", cost.seconds, "s")
    yield plain_row(_BENCH, f"{case}: processor", cost.cpu_seconds * 1000, "ms")
    yield plain_row(_BENCH, f"{case}: memory", cost.megabytes, "MB")


def _executed(node: LabNode, command: tuple[str, ...]) -> _Cost:
    """What its process has used. The agent's own part is small."""
    argv = [sys.executable, "-I", "-S", "-c", _USED, sys.executable, "-m", "ebpflb", *command]
    seconds, used, kilobytes = map(float, node.exec(argv).stdout.split())
    return _Cost(seconds, used, kilobytes * 1024 / 1e6)


def _asked(node: LabNode, certificates: Path, target: str, times: int) -> _Cost:
    """What the agent has used, by the mean, and of its memory the most."""
    _ask(node, certificates, target)
    for pid in in_cgroup(node.cgroup):
        # From now on VmHWM is the most since now.
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    resident, used = resident_megabytes(node), used_seconds(node)
    took = sum(_ask(node, certificates, target) for _ in range(times)) / times
    more = resident_megabytes(node, "VmHWM") - resident
    return _Cost(took, (used_seconds(node) - used) / times, more)


def _ask(node: LabNode, certificates: Path, target: str) -> float:
    """The seconds that it takes."""
    began = time.perf_counter()
    with (
        node.entered(),
        Exchange("127.0.0.1", OBSERVE_PORT, mutual_client(certificates)) as exchange,
    ):
        status = exchange.ask(target, time.monotonic() + _PATIENCE_SECONDS)
        content = b"".join(exchange.pieces(None))
    if status != HTTPStatus.OK:
        raise BenchError(f"the agent answers {status} to {target}: {content[:200]!r}")
    return time.perf_counter() - began

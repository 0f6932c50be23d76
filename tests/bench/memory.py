# SPDX-License-Identifier: Apache-2.0
"""What an agent with 1,000 Services keeps in memory once nothing changes any more.

All processes in the cgroup of its node count, and there are no others.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from ebpflb.lab.processes import in_cgroup
from tests.bench.harness import agent, labs
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, limit_row

SERVICES = 1_000
ENDPOINTS = 10
TARGET_MB = 96

_STEADY_SECONDS = 10.0


def run(options: Options) -> Iterator[Row]:
    """A start that compiles, then one that finds its pins: both are steady states."""
    services = options.scaled(SERVICES)
    with labs.one_node(services, ENDPOINTS) as (node, directory):
        for start in ("first start", "restart"):
            with agent.running(node, directory):
                time.sleep(min(_STEADY_SECONDS, 5 * options.seconds))
                case = f"resident, {services:,} Services x {ENDPOINTS}, {start}"
                resident = sum(map(_resident_megabytes, in_cgroup(node.cgroup)))
            yield limit_row("memory", case, [resident], "MB", TARGET_MB)


def _resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0

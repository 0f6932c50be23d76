# SPDX-License-Identifier: Apache-2.0
"""An agent's time from its start to being in sync when its pins exist and match."""

import time
from collections.abc import Iterator

from tests.bench.harness import agent, labs
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, limit_row

SERVICES = 1_000
ENDPOINTS = 10
TARGET_SECONDS = 1


def run(options: Options) -> Iterator[Row]:
    """Starts one after the other; the first one, which compiles, does not count."""
    services = options.scaled(SERVICES)
    times = []
    with labs.one_node(services, ENDPOINTS) as (node, directory):
        for _ in range(1 + options.rounds):
            begin = time.perf_counter()
            with agent.running(node, directory):
                times.append(time.perf_counter() - begin)
    case = f"pins match, {services:,} Services x {ENDPOINTS}"
    yield limit_row("start", case, times[1:], "s", TARGET_SECONDS)

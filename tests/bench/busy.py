# SPDX-License-Identifier: Apache-2.0
"""One endpoint of 44,000 Services changes while the agent has something else to do.

In turns of its own: nothing; a page of metrics each second; all maps and Services are compared;
a hundred other Services change each second; all of that at once; a million established flows,
which are looked through for those that have ended.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ebpflb.lab import LabNode
from tests.bench.change import latencies
from tests.bench.harness import agent, labs, manifests
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, limit_row, percentile_row
from tests.bench.memory import used_seconds
from tests.bench.scrape import Scraper, count_traffic
from tests.e2e.harness.many_flows import add_flows
from tests.e2e.harness.waiting import repeated

SERVICES = 44_000
ENDPOINTS = 6
# How many of them have had traffic on this node.
USED = 5_000
CHANGES = 500
FLOWS, ROOM = 1_000_000, 1 << 20
OTHERS_EACH_SECOND = 100
TARGET_MS = 10
TARGET_SHARE = 5

_IDLE_SECONDS = 90.0
# The last of the Services, which the measured changes leave alone.
_OTHERS = 1_000


def run(options: Options) -> Iterator[Row]:
    """Each row: the same number of changes, one at a time."""
    services, flows = options.scaled(SERVICES), options.scaled(FLOWS)
    room = (f"--conntrack-min={ROOM}", "--conntrack-max-per-core=0")
    with labs.one_node(services, ENDPOINTS) as (node, directory):
        bench = _Bench(node, directory, services, options)
        with agent.running(node, directory, room):
            yield bench.row("nothing else")
            used = options.scaled(USED)
            count_traffic(agent.pinned_maps(node), used, ENDPOINTS * used)
            with bench.scraped():
                yield bench.row(f"a page of metrics each second, {used:,} Services with traffic")
            with bench.others_changing():
                yield bench.row(f"{OTHERS_EACH_SECOND} other Services change each second")
        with agent.comparing(node, directory, room):
            yield bench.row("everything is compared")
            with bench.scraped(), bench.others_changing():
                yield bench.row("all of these at once")
        with agent.running(node, directory, room):
            add_flows(agent.pinned_maps(node)["lb_conntrack"], range(flows))
            yield bench.row(f"{flows:,} established flows")
            yield bench.idle_row(f"{flows:,} established flows")


class _Bench:
    def __init__(self, node: LabNode, directory: Path, services: int, options: Options) -> None:
        self._node, self._directory = node, directory
        self._services, self._changes = services, options.scaled(CHANGES)
        self._is_quick = options.quick
        self._first = [0] * (services - _OTHERS)

    def row(self, meanwhile: str) -> Row:
        maps = agent.pinned_maps(self._node)
        times = list(latencies(maps, self._directory, self._first, self._changes, ENDPOINTS))
        return percentile_row("busy", f"a change; {meanwhile}", times, 99, "ms", TARGET_MS)

    def idle_row(self, meanwhile: str) -> Row:
        """Nothing changes, for several passes over the flows."""
        seconds = _IDLE_SECONDS / (10 if self._is_quick else 1)
        before = used_seconds(self._node)
        time.sleep(seconds)
        share = 100 * (used_seconds(self._node) - before) / seconds
        case = f"processor of the agent; {meanwhile}"
        return limit_row("busy", case, [share], "% of a CPU", TARGET_SHARE)

    @contextmanager
    def scraped(self) -> Iterator[None]:
        with ExitStack() as stack:
            scraper = Scraper(self._node)
            stack.callback(scraper.close)
            stack.enter_context(_each(1.0, scraper.scrape))
            yield

    @contextmanager
    def others_changing(self) -> Iterator[None]:
        turn = 0

        def change() -> None:
            nonlocal turn
            number, turn = self._services - 1 - turn % _OTHERS, turn + 1
            first = turn // _OTHERS % 2
            content = manifests.numbered(number, ENDPOINTS, labs.NODES, first)
            manifests.write(self._directory, manifests.file_of(number), content)

        with _each(1 / OTHERS_EACH_SECOND, change):
            yield


def _each(seconds: float, step: Callable[[], object]) -> AbstractContextManager[None]:
    """Take the step that often meanwhile; one that takes longer delays the next."""
    due = time.monotonic()

    def in_time() -> None:
        nonlocal due
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due + seconds, time.monotonic())
        step()

    return repeated(in_time)

# SPDX-License-Identifier: Apache-2.0
"""A Service with a slow endpoint and one in another zone: how long connections take, by scheduler.

Four pods: two beside the client, one a zone away, and one that is slow. Connections from a pod,
each with one exchange, to one Service for each scheduler, all at once.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import LabConfig, LoadResult, Member
from ebpflb.lab.network import UPLINK
from tests.bench.harness.member_program import ready_program
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.e2e.harness.cluster import Cluster, built, started

ZONE_MS, SLOW_MS = 2, 20
SCHEDULERS = ("random", "least-connections", "lowest-latency")

_HERE = __package__
_RATE = 40
_SECONDS = 60


def run(options: Options) -> Iterator[Row]:
    """A minute; six seconds in a smoke run."""
    with (
        TemporaryDirectory(prefix="ebpflb-bench-") as logs,
        built(LabConfig("bench-distance", pods=3)) as lab,
        started(lab, Path(logs)) as cluster,
        ExitStack() as stack,
    ):
        *near, client = lab.pods_on("node1")
        zone, slow, _ = lab.pods_on("node2")
        for pod, ms in ((zone, ZONE_MS), (slow, SLOW_MS)):
            stack.enter_context(ready_program(pod, f"{_HERE}.delay", UPLINK, str(ms)))
        pods = [*near, zone, slow]
        yield from _rows(_loads(cluster, pods, client, options.scaled(_SECONDS)), slow.name)


def _loads(
    cluster: Cluster, pods: list[Member], client: Member, seconds: int
) -> Mapping[str, LoadResult]:
    specs = {
        name: cluster.serve(cluster.new("ClusterIP", annotations={"scheduler": name}), pods)
        for name in SCHEDULERS
    }
    options = {"rate": _RATE, "duration": float(seconds), "workers": 16, "timeout": 5.0}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                client.start_load(cluster.lab.cluster_ip(spec.number), spec.port, **options)
            )
            for name, spec in specs.items()
        }
        return {name: each.result() for name, each in running.items()}


def _rows(results: Mapping[str, LoadResult], slow: str) -> Iterator[Row]:
    usual = results[SCHEDULERS[0]]
    for name, found in results.items():
        share = found.pods.get(slow, 0) / found.ok
        is_judged = name == SCHEDULERS[-1]
        yield Row(
            "distance",
            f"connection and exchange, a pod {ZONE_MS} ms and one {SLOW_MS} ms away, {name}",
            f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, {share:.1%} to the slow pod",
            f"p99 {found.p99_ms / usual.p99_ms:.2f} of random, {found.failed} failed",
            "< 1.00, 0 failed" if is_judged else "",
            _verdict(found, usual) if is_judged else "",
        )


def _verdict(found: LoadResult, usual: LoadResult) -> str:
    return "short" if found.failed or found.p99_ms >= usual.p99_ms else "OK"

# SPDX-License-Identifier: Apache-2.0
"""What others get of a Service while one client holds 200 connections, or sends 100,000 SYN/s.

Both are pods of one node. Two endpoints on the other one serve 20 connections each at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import LabConfig, LoadResult
from ebpflb.lab.manifests import ServiceSpec
from tests.bench.harness.member_program import ready_program
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.e2e.harness.cluster import Cluster, built, started

SYNS, HELD = 100_000, 200
OPEN_LIMIT = {"max-connections-per-client": "5"}
RATE_LIMIT = {"new-connections-per-client": "100/s, drop"}

_HERE = __package__
_PORT = 9000
_RATE = 20
_SECONDS = 20
_PATIENCE = 2.0


def run(options: Options) -> Iterator[Row]:
    """Two minutes; ten seconds in a smoke run."""
    with (
        TemporaryDirectory(prefix="ebpflb-bench-") as logs,
        built(LabConfig("bench-noisy", pods=2)) as lab,
        started(lab, Path(logs)) as cluster,
        ExitStack() as stack,
    ):
        for pod in lab.pods_on("node2"):
            stack.enter_context(ready_program(pod, f"{_HERE}.counter", pod.name, str(_PORT)))
        bench = _Bench(cluster, options.scaled(_SECONDS))
        yield bench.row("nobody else", {}, _nothing)
        for annotations in ({}, OPEN_LIMIT):
            yield bench.row(f"one holds {HELD} connections", annotations, _held)
        for annotations in ({}, RATE_LIMIT):
            yield bench.row(f"one sends {SYNS:,} SYN/s", annotations, _flooded)


class _Bench:
    """One Service for each case, so that nothing is left of the one before."""

    def __init__(self, cluster: Cluster, seconds: int) -> None:
        self.cluster = cluster
        self.seconds = seconds

    def row(self, case: str, annotations: Mapping[str, str], noise: "_Noise") -> Row:
        pods = self.cluster.lab.pods_on("node2")
        spec = self.cluster.new("ClusterIP", annotations=annotations)
        self.cluster.serve(spec, pods, target_port=_PORT)
        with noise(self, spec):
            found = self._load(spec)
        told = ", ".join(f"{name}: {value}" for name, value in annotations.items())
        return Row(
            "noisy",
            f"others' connections, {case}, {told or 'no limit'}",
            f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms",
            f"{found.failed} of {found.attempted} failed",
            "0 failed" if annotations else "",
            ("short" if found.failed else "OK") if annotations else "",
        )

    def place(self, spec: ServiceSpec) -> tuple[str, int]:
        return self.cluster.lab.cluster_ip(spec.number), spec.port

    def _load(self, spec: ServiceSpec) -> LoadResult:
        client = self.cluster.lab.pod("pod-1-1")
        seconds = float(self.seconds)
        return client.load(
            *self.place(spec), rate=_RATE, duration=seconds, timeout=_PATIENCE, workers=64
        )


_Noise = Callable[[_Bench, ServiceSpec], AbstractContextManager[None]]


@contextmanager
def _nothing(bench: _Bench, spec: ServiceSpec) -> Iterator[None]:
    yield


@contextmanager
def _held(bench: _Bench, spec: ServiceSpec) -> Iterator[None]:
    hostile = bench.cluster.lab.pod("pod-1-2")
    held = hostile.start_load(
        *bench.place(spec), count=HELD, workers=HELD, exchanges=0, timeout=bench.seconds + 5.0
    )
    with held:
        yield


@contextmanager
def _flooded(bench: _Bench, spec: ServiceSpec) -> Iterator[None]:
    address, port = bench.place(spec)
    # It lasts longer than what is measured.
    options = (address, str(port), str(SYNS), str(bench.seconds + 2))
    hostile = bench.cluster.lab.pod("pod-1-2")
    with ready_program(hostile, f"{_HERE}.flood", *options) as flood:
        yield
        sent = int(flood.stdout.read()) if flood.stdout else 0
    if sent < SYNS * 0.9:
        raise BenchError(f"the machine sends {sent:,} SYN/s, and no more")

# SPDX-License-Identifier: Apache-2.0
"""10,000 Services with 10 endpoints each, from files to empty maps: decode, plan, write."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ebpflb.agent.process import collect_seldom
from ebpflb.dataplane.kernel.maps import open_maps
from ebpflb.dataplane.layout.capacity import sizes_for
from ebpflb.dataplane.services.sync import Desired, Sync
from ebpflb.model.changes import Changes
from ebpflb.source.directory import DirectorySource
from ebpflb.source.interface import SourceEvent
from tests.bench.harness import manifests
from tests.bench.harness.generation import generation
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, limit_row

SERVICES = 10_000
ENDPOINTS = 10
WHOLE_SECONDS = 10
WRITE_SECONDS = 2

_NODES = ("node1", "node2")


class Fill(NamedTuple):
    """Seconds of each step of one round."""

    decode: float
    plan: float
    write: float


def run(options: Options) -> Iterator[Row]:
    """Each round in a separate process: a start begins with fresh memory."""
    count = options.scaled(SERVICES)
    with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        manifests.fill(Path(directory), count, ENDPOINTS, _NODES)
        fills = [_in_child(Path(directory)) for _ in range(min(options.rounds, 3))]
    case = f"{count:,} Services x {ENDPOINTS} endpoints"
    whole = [sum(fill) for fill in fills]
    yield limit_row("fill", f"{case}: decode, plan, write", whole, "s", WHOLE_SECONDS)
    writes = [fill.write for fill in fills]
    yield limit_row("fill", f"{case}: the writes of it", writes, "s", WRITE_SECONDS)


def _in_child(directory: Path) -> Fill:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(fill_once, directory).result()


def fill_once(directory: Path) -> Fill:
    """One round. Compiling the programs, for maps of the right size, is not part of it."""
    collect_seldom()
    begin = time.perf_counter()
    event = _first_event(directory)
    decoded = time.perf_counter()
    changes = Changes(_NODES[0])
    for item in event.upserts:
        changes.set(item)
    desired = {name: changes.plan(name) for name in sorted(changes.take())}
    planned = time.perf_counter()
    sizes = sizes_for(frontend for frontends in desired.values() for frontend in frontends)
    with generation(sizes) as made:
        write = _write(Sync(open_maps(made.maps)), desired)
    return Fill(decoded - begin, planned - decoded, write)


def _first_event(directory: Path) -> SourceEvent:
    events: list[SourceEvent] = []
    arrived = threading.Event()

    def emit(event: SourceEvent) -> None:
        events.append(event)
        arrived.set()

    source = DirectorySource(directory, emit)
    source.start()
    arrived.wait()
    source.stop()
    return events[0]


def _write(sync: Sync, desired: Desired) -> float:
    begin = time.perf_counter()
    refused = sync.resync(desired)
    seconds = time.perf_counter() - begin
    if refused:
        raise BenchError(f"{len(refused)} Services did not fit")
    return seconds

# SPDX-License-Identifier: Apache-2.0
"""10,000 Services that have the same five pods, and one of these is replaced in all of them.

(A name for each tenant or version in front of one deployment; cilium/cilium#44310.)
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap
from tests.bench.change import change
from tests.bench.harness import agent, labs, manifests
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, percentile_row, plain_row
from tests.bench.memory import resident_megabytes

SERVICES = 10_000
PODS = 5
CHANGES = 200

_PATIENCE_SECONDS = 120.0


def run(options: Options) -> Iterator[Row]:
    """The start, single changes, and then all Services at once."""
    services = options.scaled(SERVICES)
    case = f"{services:,} Services of the same {PODS} pods"
    with labs.one_node(0, 0) as (node, directory):
        manifests.write_all(directory, services, _manifest)
        began = time.perf_counter()
        with agent.running(node, directory):
            yield plain_row("shared", f"first sync, {case}", time.perf_counter() - began, "s")
            yield plain_row("shared", f"resident, {case}", resident_megabytes(node), "MB")
            maps = agent.pinned_maps(node)
            times = [
                change(maps, directory, number, _manifest(number, first=1))
                for number in range(options.scaled(CHANGES))
            ]
            yield percentile_row("shared", f"a change of one, {case}", times, 99, "ms", 10)
            took = _replace(maps["lb_current"], directory, services)
            yield plain_row("shared", f"a pod replaced in all, {case}", took, "s")


def _manifest(number: int, first: int = 0) -> bytes:
    name = manifests.name_of(number)
    service = manifests.service(name, manifests.cluster_ip(number))
    addresses = manifests.pods(0, PODS, first)
    return manifests.listed([service, manifests.endpoint_slice(name, addresses, labs.NODES)])


def _replace(current: BpfMap, directory: Path, services: int) -> float:
    """Seconds from the first renamed manifest until each frontend has another word."""
    before = _words(current)
    began = time.perf_counter()
    manifests.write_all(directory, services, partial(_manifest, first=2))
    while len(_words(current) - before) < services:
        time.sleep(0.01)
        if time.perf_counter() - began > _PATIENCE_SECONDS:
            raise BenchError(f"not all words are new after {_PATIENCE_SECONDS:g} s")
    return time.perf_counter() - began


def _words(current: BpfMap) -> set[tuple[int, int]]:
    """Index and word of each frontend."""
    return {
        (int.from_bytes(key, byteorder), word)
        for key, value in current.items()
        if (word := int.from_bytes(value, byteorder))
    }

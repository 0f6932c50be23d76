# SPDX-License-Identifier: Apache-2.0
"""One endpoint changes while 10,000 Services are loaded: from the file's rename to the map's word.

The clock starts before rename(2) and stops when the pinned lb_current holds another word for the
frontend. This process looks every 0.1 ms, which leaves the CPUs to the agent and to who scrapes it.
The data that the word refers to is read and compared, so that a wrong commit does not count as a
fast one.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.structs import LbAddr, LbBackend, LbDesc, LbFrontendKey
from ebpflb.model.address import Address, Protocol, format_address, parse_address
from tests.bench.harness import agent, labs, manifests
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, percentile_row

SERVICES = 10_000
ENDPOINTS = 10
CHANGES = 1_000
TARGET_MS = 10

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 0.0001
_NOTHING = bytes(8)


def run(options: Options) -> Iterator[Row]:
    """Changes of Services chosen at random, one at a time."""
    services, changes = options.scaled(SERVICES), options.scaled(CHANGES)
    with labs.one_node(services, ENDPOINTS) as (node, directory), agent.running(node, directory):
        times = list(latencies(agent.pinned_maps(node), directory, [0] * services, changes))
    case = f"one endpoint, {services:,} Services x {ENDPOINTS}"
    yield percentile_row("change", case, times, 99, "ms", TARGET_MS)


def latencies(
    maps: MapSet, directory: Path, first: list[int], changes: int, endpoints: int = ENDPOINTS
) -> Iterator[float]:
    """Milliseconds of this many changes. `first`: of each Service's `endpoints`, which changes."""
    chooser = random.Random(1)
    for _ in range(changes):
        number = chooser.randrange(len(first))
        first[number] = 1 - first[number]
        content = manifests.numbered(number, endpoints, labs.NODES, first[number])
        yield change(maps, directory, number, content)
        expected = set(manifests.pods(number, endpoints, first[number]))
        if (found := _backends(maps, number)) != expected:
            raise BenchError(f"{manifests.name_of(number)}: {sorted(found)} were written")
        time.sleep(_PAUSE_SECONDS)


def change(maps: MapSet, directory: Path, number: int, content: bytes) -> float:
    """Replace the manifest of a Service; milliseconds until the maps hold another word for it."""
    index = _index(maps, number)
    current = maps["lb_current"]
    name = manifests.file_of(number)
    unfinished = manifests.write_unfinished(directory, name, content)
    before = word = current.lookup(index)
    begin = time.perf_counter()
    unfinished.rename(directory / name)
    while word == before:
        time.sleep(_LOOK_SECONDS)
        word = current.lookup(index)
        if time.perf_counter() - begin > _PATIENCE_SECONDS:
            raise BenchError(f"{name}: no new word after {_PATIENCE_SECONDS:g} s")
    return (time.perf_counter() - begin) * 1000


def _index(maps: MapSet, number: int) -> bytes:
    address = LbAddr.from_buffer_copy(parse_address(manifests.cluster_ip(number)))
    key = LbFrontendKey(addr=address, port=manifests.PORT, proto=Protocol.TCP)
    index = maps["lb_frontends"].lookup(bytes(key))
    if index is None:
        raise BenchError(f"{manifests.name_of(number)} is not in lb_frontends")
    return index


def _backends(maps: MapSet, number: int) -> set[str]:
    """The backends that a Service's word refers to, for sources on this node."""
    word = maps["lb_current"].lookup(_index(maps, number)) or _NOTHING
    descriptor = maps["lb_descs"].lookup(_key(int.from_bytes(word, byteorder)))
    chosen = LbDesc.from_buffer_copy(descriptor or b"").local
    found = set()
    for slot in range(chosen.base, chosen.base + chosen.count):
        backend = maps["lb_backends"].lookup(maps["lb_slots"].lookup(_key(slot)) or b"")
        address = LbBackend.from_buffer_copy(backend or b"").addr
        found.add(format_address(Address(bytes(address))))
    return found


def _key(index: int) -> bytes:
    return index.to_bytes(4, byteorder)

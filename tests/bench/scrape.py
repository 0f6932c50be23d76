# SPDX-License-Identifier: Apache-2.0
"""The page /metrics of 5,000 Services with traffic: alone, and a hundred at once.

Each Service has a ClusterIP, a NodePort and five endpoints: 10,000 frontends and 25,000 backends,
whose counters this process fills, and enough flows to fill half the table.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.structs import LbBackend, LbConntrack, LbCounts
from ebpflb.lab import LabNode
from tests.bench.harness import agent, labs, manifests
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, limit_row, plain_row

SERVICES = 5_000
ENDPOINTS = 5
FLOWS = 65_536
TARGET_SECONDS = 0.5
AT_ONCE = 100

_FIRST_NODE_PORT = 20_000
# Pages are shared for a second.
_FRESH_SECONDS = 1.1
_ORIGINAL = 1
_FETCH = """
import sys, time
from urllib.request import urlopen
for _ in sys.stdin:
    began = time.perf_counter()
    body = urlopen("http://127.0.0.1:10249/metrics").read()
    seconds = time.perf_counter() - began
    print(seconds, len(body), body.count(b"ebpflb_service_connections_total{"), flush=True)
"""


class Scraper:
    """A process on the node that requests the page on command."""

    def __init__(self, node: LabNode) -> None:
        command = [sys.executable, "-I", "-S", "-c", _FETCH]
        self._process = node.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def scrape(self) -> tuple[float, int, int]:
        """Seconds, bytes, and series of one metric."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, size, series = self._process.stdout.readline().split()
        return float(seconds), int(size), int(series)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def run(options: Options) -> Iterator[Row]:
    """One page after the other, a hundred at once, and changes with and without scrapes."""
    services = options.scaled(SERVICES)
    case = f"{services:,} Services, {2 * services:,} frontends, {ENDPOINTS * services:,} backends"
    with labs.one_node(0, 0) as (node, directory):
        manifests.write_all(directory, services, _manifest)
        with agent.running(node, directory):
            maps = agent.pinned_maps(node)
            count_traffic(maps, 2 * services, ENDPOINTS * services)
            scraper = Scraper(node)
            try:
                pages = [_page(scraper, services) for _ in range(options.rounds)]
                yield limit_row("scrape", case, pages, "s", TARGET_SECONDS)
                yield plain_row("scrape", f"{AT_ONCE} at once: the last", _at_once(node), "s")
            finally:
                scraper.close()


def _manifest(number: int) -> bytes:
    name, node_port = manifests.name_of(number), _FIRST_NODE_PORT + number
    service = manifests.service(name, manifests.cluster_ip(number), node_port=node_port)
    addresses = manifests.pods(number, ENDPOINTS)
    return manifests.listed([service, manifests.endpoint_slice(name, addresses, labs.NODES)])


def count_traffic(maps: MapSet, frontends: int, backends: int) -> None:
    """Counters of this many, as if all had had traffic, and entries of flows to the backends."""
    for name, count in (("lb_count_front", frontends), ("lb_count_back", backends)):
        value = bytes(LbCounts(*range(1, 6))) * maps[name].cpus
        maps[name].update_batch([(_key(place), value) for place in range(count)])
    records = [LbBackend.from_buffer_copy(value) for _, value in maps["lb_backends"].items()]
    now = time.monotonic_ns()
    flows = []
    for number in range(FLOWS):
        place = number % backends
        entry = LbConntrack(created=now, last_seen=now, direction=_ORIGINAL, backend=place)
        entry.serial = records[place].serial
        flows.append((number.to_bytes(maps["lb_conntrack"].key_size, "big"), bytes(entry)))
    maps["lb_conntrack"].update_batch(flows)


def _key(place: int) -> bytes:
    return place.to_bytes(4, byteorder)


def _page(scraper: Scraper, services: int) -> float:
    time.sleep(_FRESH_SECONDS)
    seconds, _, series = scraper.scrape()
    if series != 2 * services:
        raise BenchError(f"{series} series, not {2 * services}")
    return seconds


def _at_once(node: LabNode) -> float:
    scrapers = [Scraper(node) for _ in range(AT_ONCE)]
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return max(found[0] for found in pool.map(Scraper.scrape, scrapers))
    finally:
        for each in scrapers:
            each.close()

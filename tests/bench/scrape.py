# SPDX-License-Identifier: Apache-2.0
"""The page /metrics of 5,000 Services with traffic: alone, and a hundred at once.

Each Service has a ClusterIP, a NodePort and five endpoints: 10,000 frontends and 25,000 backends,
whose counters this process fills, and enough flows to fill half the table. What --metrics-latency
adds is measured in this process, which has flow records without flows.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from sys import byteorder

from ebpflb.dataplane.flows.records import StoredFlow
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import FlowEvent, FlowPath
from ebpflb.dataplane.layout.structs import LbBackend, LbConntrack, LbCounts, LbFlowRecord
from ebpflb.lab import LabNode
from ebpflb.model.address import Protocol
from ebpflb.model.service import ServicePortName
from ebpflb.observe.metrics.latency import BOUNDS, ServiceLatency
from ebpflb.observe.metrics.latency_text import latency_lines
from ebpflb.observe.metrics.service_readings import PortLabels
from ebpflb.observe.metrics.services import in_pieces
from ebpflb.observe.metrics.text_format import OPENMETRICS
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
from urllib.request import Request, urlopen
accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
for _ in sys.stdin:
    began = time.perf_counter()
    body = urlopen(Request("http://127.0.0.1:10249/metrics", headers=accept)).read()
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
    yield from _latency(services, options.rounds)


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


def _latency(services: int, rounds: int) -> Iterator[Row]:
    """Both histograms of each Service, with a connection, and so an exemplar, in each bucket."""
    names = [
        ServicePortName("default", f"bench-{n}", "http", Protocol.TCP) for n in range(services)
    ]
    labels = {name: PortLabels("default", name.service, "http", "TCP") for name in names}
    kinds = FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END
    records = [_record(event, bound) for event in kinds for bound in (*BOUNDS, 2 * BOUNDS[-1])]
    latency = ServiceLatency()
    began = time.process_time()
    for name in names:
        for number, record in enumerate(records):
            latency.count(number, StoredFlow(record, 0, name))
    each = (time.process_time() - began) / len(names) / len(records)
    yield plain_row("scrape", "--metrics-latency: a flow record", each * 1e6, "us of CPU")
    times = []
    for _ in range(rounds):
        began = time.process_time()
        size = sum(map(len, in_pieces(latency_lines(latency.readings(labels), OPENMETRICS))))
        times.append(time.process_time() - began)
    case = f"--metrics-latency: {2 * services:,} histograms in a page, {size / 1e6:.0f} MB"
    yield plain_row("scrape", case, min(times), "s of CPU")


def _record(event: FlowEvent, seconds: float) -> bytes:
    return bytes(
        LbFlowRecord(
            event=event,
            path=FlowPath.LB_PATH_SOCKET,
            proto=Protocol.TCP,
            rtt=round(seconds * 1e6),
        )
    )


def _at_once(node: LabNode) -> float:
    scrapers = [Scraper(node) for _ in range(AT_ONCE)]
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return max(found[0] for found in pool.map(Scraper.scrape, scrapers))
    finally:
        for each in scrapers:
            each.close()

# SPDX-License-Identifier: Apache-2.0
"""An agent that follows a real API server: its start, its memory, and what changes cost it.

No controllers take part: slices are written here, as the EndpointSlice controller would.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.structs import LbAddr, LbFrontendKey
from ebpflb.model.address import Protocol, parse_address
from tests.bench.harness import manifests
from tests.bench.harness.manifests import Document
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, percentile_row, plain_row
from tests.cluster.harness.agent import ClusterAgent, running_agent
from tests.cluster.harness.api_client import ApiClient
from tests.cluster.harness.control_plane import ControlPlane
from tests.proc_status import ProcStatus

SERVICES, FEW_SERVICES = 5_000, 1_000
ENDPOINTS = 10
RATE, SECONDS = 100, 10
CHANGES = 300
NODES = ("node1", "node2")

_PATIENCE_SECONDS = 5.0
_CLOCK_TICKS = 100


def run(options: Options) -> Iterator[Row]:
    """First with many Services, then the latency of single changes with fewer."""
    with control_plane(options.scaled(SERVICES)) as (control, api, _):
        yield from _load(control, api, options)
    with control_plane(options.scaled(FEW_SERVICES)) as (control, api, addresses):
        yield _latency(control, api, addresses, options)


@contextmanager
def control_plane(services: int) -> Iterator[tuple[ControlPlane, ApiClient, list[str]]]:
    """A control plane with this many Services; their ClusterIPs."""
    with api_server() as (control, api):
        yield control, api, create_all(api, map(_made_up, range(services)))


@contextmanager
def api_server(name: str = "bench") -> Iterator[tuple[ControlPlane, ApiClient]]:
    """A control plane that has only the namespace of the Services."""
    control = ControlPlane.up(name, nodes=1)
    try:
        api = ApiClient(control.url, control.kubeconfig)
        api.post("/api/v1/namespaces", {"metadata": {"name": manifests.NAMESPACE}})
        yield control, api
    finally:
        control.down()


def create_all(api: ApiClient, pairs: Iterable[tuple[Document, Document]]) -> list[str]:
    """Create Services, each with its slice; their ClusterIPs, which the API chooses for ""."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda pair: _create(api, *pair), pairs))


def _made_up(number: int) -> tuple[Document, Document]:
    name, pods = manifests.name_of(number), manifests.pods(number, ENDPOINTS)
    return manifests.service(name, ""), manifests.endpoint_slice(name, pods, NODES)


def _create(api: ApiClient, service: Document, piece: Document) -> str:
    del service["spec"]["clusterIPs"]
    made = api.post(f"/api/v1/namespaces/{manifests.NAMESPACE}/services", service)
    api.post(_slices(), piece)
    return str(made["spec"]["clusterIP"])


def _slices(name: str = "") -> str:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{manifests.NAMESPACE}/endpointslices"
    return f"{path}/{name}" if name else path


def change(api: ApiClient, number: int, first: int) -> None:
    """Replace the endpoints of a Service by others; first: of their numbers."""
    name = manifests.name_of(number)
    wanted = manifests.endpoint_slice(name, manifests.pods(number, ENDPOINTS, first), NODES)
    api.merge(_slices(f"{name}-1"), {"endpoints": wanted["endpoints"]})


def _load(control: ControlPlane, api: ApiClient, options: Options) -> Iterator[Row]:
    services = options.scaled(SERVICES)
    began = time.monotonic()
    with agent_in_sync(control) as agent:
        started = time.monotonic() - began
        case = f"{services:,} Services x {ENDPOINTS}"
        yield plain_row("api", f"start to in sync, {case}", started, "s")
        yield plain_row("api", f"resident, {case}", _resident(agent), "MB")
        before, began = _used_seconds(agent), time.monotonic()
        for count in range(RATE * SECONDS):
            change(api, count % services, 1)
            time.sleep(max(0.0, began + (count + 1) / RATE - time.monotonic()))
        elapsed = time.monotonic() - began
        share = 100 * (_used_seconds(agent) - before) / elapsed
        rate = RATE * SECONDS / elapsed
        yield plain_row("api", f"processor at {rate:.0f} slice changes/s", share, "%")
        yield plain_row("api", "resident after that", _resident(agent), "MB")


def _latency(control: ControlPlane, api: ApiClient, addresses: list[str], options: Options) -> Row:
    with agent_in_sync(control) as agent:
        maps = agent.maps()
        times = [
            committed_after(api, maps, number % len(addresses), addresses)
            for number in range(options.scaled(CHANGES))
        ]
    case = f"slice written to committed, {len(addresses):,} Services"
    return percentile_row("api", case, times, 99, "ms", 100)


def committed_after(api: ApiClient, maps: MapSet, number: int, addresses: list[str]) -> float:
    """Milliseconds from before a change is written until its frontend has a new word in the
    maps.
    """
    address = LbAddr.from_buffer_copy(parse_address(addresses[number]))
    key = LbFrontendKey(addr=address, port=manifests.PORT, proto=Protocol.TCP)
    index = maps["lb_frontends"].lookup(bytes(key))
    if index is None:
        raise BenchError(f"{addresses[number]} is not in lb_frontends")
    current = maps["lb_current"]
    before = current.lookup(index)
    began = time.perf_counter()
    change(api, number, 2)
    while current.lookup(index) == before:
        if time.perf_counter() - began > _PATIENCE_SECONDS:
            raise BenchError(f"no new word after {_PATIENCE_SECONDS:g} s")
        time.sleep(0.0002)
    return (time.perf_counter() - began) * 1000


@contextmanager
def agent_in_sync(control: ControlPlane) -> Iterator[ClusterAgent]:
    """An agent that has programmed all of it."""
    with running_agent(control) as agent:
        agent.wait_in_sync()
        yield agent


def _resident(agent: ClusterAgent) -> float:
    status = ProcStatus.of(agent.daemon.process.pid)
    return status.number("VmRSS") * 1024 / 1e6 if "VmRSS" in status else 0.0


def _used_seconds(agent: ClusterAgent) -> float:
    fields = Path(f"/proc/{agent.daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _CLOCK_TICKS

# SPDX-License-Identifier: Apache-2.0
"""1 Service and 10,000 at XDP, of 10 endpoints each: packets of one flow, packets of many flows in
turns, and first packets of flows.

Both sides have the same number of flows, from as many clients: to one Service, and each to its own
Service. The endpoints are remote, behind one next hop.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.layout.capacity import sizes_for
from ebpflb.model.address import WILDCARD, parse_address
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServicePortName, TrafficPolicy
from tests.bench.harness.cpu import one_cpu
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.rounds import Comparison, Measure, in_turns, span
from tests.bench.xdp.ours import Ours
from tests.bench.xdp.relay import Relay, numbered, padded
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import KINDS, End, Kind
from tests.bpf.harness.services import BACKEND_PORT, CLIENT_PORT

_SERVICES, _ENDPOINTS, _FLOWS = 10_000, 10, 10_000
_RUNS = 1_000_000
_FIRST_PORT = 30_000
# As many endpoints have the same port, so that their addresses stay within the route.
_ADDRESSES = 60_000
_CLIENT_ROUTE = "route add 198.51.0.0/16 via 192.0.2.254"


class _World:
    """A node with that many Services, and a relay whose flows go to all of them."""

    def __init__(self, directory: Path, node: Node, kind: Kind, services: int, most: int) -> None:
        """`most`: maps have space for that many Services, whatever their number."""
        frontends = [_frontend(kind, number) for number in range(most)]
        directory.mkdir()
        self._ours = Ours(directory / "ours", node, sizes_for(frontends))
        self._ours.serve(frontends[:services])
        self._relay = Relay(directory, has_frags=self._ours.has_frags)
        self._ifindex = node.uplink.ifindex
        self._services = services
        self._kind = kind

    def know(self, flows: int) -> None:
        """Begin flows, except the few whose checksums look offloaded."""
        request, later = self._frame("S"), self._frame("A")
        for number in range(flows):
            place = number, number % self._services
            frames = numbered(request, *place), numbered(later, *place)
            with suppress(BenchError):
                self._ours.open(self._ifindex, *frames)

    def known(self, runs: int, flows: int) -> float:
        """Nanoseconds for a packet of flows that take turns."""
        self._place("A", flows)
        return self._net(runs)

    def first(self, flows: int) -> float:
        """Nanoseconds for the packet that opens a flow."""
        self._ours.forget()
        self._place("S", flows)
        return self._net(flows)

    def check(self, flows: int) -> None:
        """Check each packet of that many known flows, and the first ones. BenchError."""
        self._place("A", flows)
        self._relay.check(self._ours.program, flows, self._ifindex)
        self._ours.forget()
        self._place("S", flows)
        self._relay.check(self._ours.program, flows, self._ifindex)

    def _net(self, runs: int) -> float:
        overhead = self._relay.overhead(runs, self._ifindex)
        return self._relay.time(self._ours.program, runs, self._ifindex) - overhead

    def _place(self, flags: str, flows: int) -> None:
        self._relay.place(self._frame(flags), clients=flows, ports=min(flows, self._services))

    def _frame(self, flags: str) -> bytes:
        net = self._kind.net
        source, target = End(net.client, CLIENT_PORT), End(net.node, _FIRST_PORT)
        return padded(bytes(self._kind.frame(source, target, flags, payload=b"")))


def run(options: Options) -> Iterator[Row]:
    """Rows for each family and protocol."""
    node = Node()
    try:
        with node.entered(), one_cpu():
            subprocess.run(["ip", "-batch", "-"], input=_CLIENT_ROUTE, text=True, check=True)
            for kind in KINDS:
                with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
                    yield from _rows(Path(directory), node, kind, options)
    finally:
        node.close()


def _rows(directory: Path, node: Node, kind: Kind, options: Options) -> Iterator[Row]:
    many = options.scaled(_SERVICES)
    flows, runs = options.scaled(_FLOWS), options.scaled(_RUNS)
    worlds = {
        f"{count:,}": _World(directory / str(count), node, kind, count, many) for count in (1, many)
    }
    for world in worlds.values():
        world.know(flows)
        world.check(flows)
        world.know(flows)
    rounds = max(options.rounds // 5, 1)
    cases = {
        "one known flow": {name: partial(each.known, runs, 1) for name, each in worlds.items()},
        f"{flows:,} known flows in turns": {
            name: partial(each.known, runs, flows) for name, each in worlds.items()
        },
        "first packets": {name: partial(each.first, flows) for name, each in worlds.items()},
    }
    for case, measures in cases.items():
        yield _row(f"{kind.proto.name} over {kind.net.family.name}, {case}", measures, rounds)


def _row(case: str, measures: Mapping[str, Measure], rounds: int) -> Row:
    (one, ours), (many, other) = in_turns(measures, rounds).items()
    ratio = Comparison(other, ours).ratio
    measured = f"{one} Service {span(ours).median:.0f} ns, {many} {span(other).median:.0f} ns"
    result = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return Row("services", case, measured, result)


def _frontend(kind: Kind, number: int) -> Frontend:
    places = range(number * _ENDPOINTS, (number + 1) * _ENDPOINTS)
    backends = Choice(tuple(sorted(_backend(kind, place) for place in places)), IfEmpty.REFUSE)
    return Frontend(
        key=FrontendKey(WILDCARD[kind.net.family], _FIRST_PORT + number, kind.proto),
        type=FrontendType.NODE_PORT,
        service=ServicePortName("bench", f"service-{number}", "main", kind.proto),
        local=backends,
        others=backends,
        internal_policy=TrafficPolicy.CLUSTER,
        external_policy=TrafficPolicy.CLUSTER,
        affinity_timeout=0,
    )


def _backend(kind: Kind, place: int) -> Backend:
    port, rest = divmod(place, _ADDRESSES)
    address = str(ip_address(kind.net.remote) + rest)
    return Backend(parse_address(address), BACKEND_PORT + port, local=False, terminating=False)

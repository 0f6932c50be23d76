# SPDX-License-Identifier: Apache-2.0
"""ebpflb's program at XDP, other projects' programs and a reflector, on the same packets in turns:
to a NodePort whose pod is remote, of a known flow, and first packets of flows.

EBPFLB_PEERS: a directory with `katran.o` and `cilium_xdp.o`, compiled by whoever runs this.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, median_grouped
from tempfile import TemporaryDirectory
from typing import Protocol

from ebpflb.dataplane.layout.capacity import Sizes
from tests.bench.harness.cpu import one_cpu
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.rounds import Comparison, Measure, in_turns, span
from tests.bench.xdp.cilium import Cilium
from tests.bench.xdp.katran import Katran
from tests.bench.xdp.ours import Ours
from tests.bench.xdp.relay import Relay, padded
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, KINDS, End, Kind
from tests.bpf.harness.services import BACKEND_PORT, CLIENT_PORT, NODE_PORT

_DIRECTORY = "EBPFLB_PEERS"
_RUNS, _FLOWS = 1_000_000, 10_000
# What the agent has made of its tables by the time so many flows have begun.
_ROOM = Sizes(ct_short=65_536, ct_udp=65_536)
_OURS, _REFLECTOR = "ebpflb", "reflector"
_KATRAN, _CILIUM = "katran, IP in IP", "Cilium, SNAT"
_OTHERS = {_KATRAN: "katran.o", _CILIUM: "cilium_xdp.o"}
# Of katran's time, which does less: a known flow by family, and a first packet. Of Cilium's, any.
_MOST_KNOWN, _MOST_FIRST = {IPV4: 1.5, IPV6: 2.0}, 2.0
_MOST_CILIUM = 0.3


class Balancer(Protocol):
    """A program, by its descriptor, and its maps. is_growing: it makes the frame longer."""

    program: int
    has_frags: bool
    is_growing: bool

    def prepare(self, kind: Kind, frontend: End, backend: End) -> None:
        """Serve a frontend, and delete all flows."""

    def forget(self) -> None:
        """Delete all flows."""

    def open(self, ifindex: int, request: bytes, later: bytes) -> None:
        """Begin a flow, so that `later` is a packet of a known one. BenchError."""


def run(options: Options) -> Iterator[Row]:
    """Rows for each family and protocol; a single one for a peer that is not available."""
    node = Node()
    try:
        with TemporaryDirectory(prefix="ebpflb-bench-") as name, node.entered(), one_cpu():
            directory = Path(name)
            relays = {frags: Relay(directory, has_frags=frags) for frags in (True, False)}
            balancers: dict[str, Balancer] = {_OURS: Ours(directory / "ours", node, _ROOM)}
            balancers |= _peers(node)
            for kind in KINDS:
                yield from _rows(_Case(kind, node, relays, balancers), options)
            for missing in _OTHERS.keys() - balancers.keys():
                skipped = f"skipped: no {_OTHERS[missing]} in {_DIRECTORY}"
                yield Row("peers", f"beside {missing}", "", skipped)
    finally:
        node.close()


def _peers(node: Node) -> Iterator[tuple[str, Balancer]]:
    makers: tuple[Callable[[Path], Balancer], ...] = (Katran, partial(Cilium, node=node))
    if directory := os.environ.get(_DIRECTORY):
        for make, (name, file) in zip(makers, _OTHERS.items(), strict=True):
            path = Path(directory) / file
            if path.is_file():
                yield name, make(path)


class _Case:
    """One family and protocol: what is measured."""

    def __init__(
        self,
        kind: Kind,
        node: Node,
        relays: Mapping[bool, Relay],
        balancers: Mapping[str, Balancer],
    ) -> None:
        """Every balancer serves the NodePort, and knows a flow."""
        self.kind = kind
        self.balancers = balancers
        self._relays = relays
        self._ifindex = node.uplink.ifindex
        source, target = End(kind.net.client, CLIENT_PORT), End(kind.net.node, NODE_PORT)
        self._request, self._later = (
            padded(bytes(kind.frame(source, target, flags, payload=b""))) for flags in "SA"
        )
        for each in balancers.values():
            each.prepare(kind, target, End(kind.net.remote, BACKEND_PORT))
            self._check(each)
            each.forget()
            each.open(self._ifindex, self._request, self._later)

    def _check(self, balancer: Balancer) -> None:
        relay = self._relays[balancer.has_frags]
        relay.place(self._request, clients=_FLOWS)
        relay.check(balancer.program, _FLOWS, self._ifindex)

    def known(self, balancer: Balancer, runs: int) -> float:
        """Nanoseconds for a packet of the known flow."""
        self._relays[balancer.has_frags].place(self._later)
        return self._net(balancer, runs)

    def first(self, balancer: Balancer, flows: int) -> float:
        """Nanoseconds for the packet that opens a flow."""
        balancer.forget()
        self._relays[balancer.has_frags].place(self._request, clients=flows)
        return self._net(balancer, flows)

    def reflected(self, runs: int) -> float:
        """Nanoseconds for the reflector."""
        relay = self._relays[True]
        relay.place(self._later)
        return relay.time(relay.reflect, runs, self._ifindex) - relay.overhead(runs, self._ifindex)

    def _net(self, balancer: Balancer, runs: int) -> float:
        relay = self._relays[balancer.has_frags]
        overhead = relay.overhead(runs, self._ifindex)
        taken = relay.time(balancer.program, runs, self._ifindex) - overhead
        if not balancer.is_growing:
            return taken
        return taken - (relay.growth(runs, self._ifindex) - overhead) / 2


def _rows(case: _Case, options: Options) -> Iterator[Row]:
    runs, rounds = options.scaled(_RUNS), max(options.rounds // 5, 1)
    name = f"{case.kind.proto.name} over {case.kind.net.family.name}"
    known: dict[str, Measure] = {_REFLECTOR: partial(case.reflected, runs)}
    known |= {each: partial(case.known, other, runs) for each, other in case.balancers.items()}
    most = {_KATRAN: _MOST_KNOWN[case.kind.net], _CILIUM: _MOST_CILIUM}
    yield from _compared(f"{name}, known flow", in_turns(known, rounds), most)
    first = {each: partial(case.first, other, _FLOWS) for each, other in case.balancers.items()}
    most = {_KATRAN: _MOST_FIRST, _CILIUM: _MOST_CILIUM}
    yield from _compared(f"{name}, first packet", in_turns(first, rounds), most)


def _compared(
    case: str, measured: Mapping[str, list[float]], most: Mapping[str, float]
) -> Iterator[Row]:
    ours = measured[_OURS]
    for name, other in measured.items():
        if name == _REFLECTOR:
            yield _beside_reflector(f"{case}: {name}", ours, other)
        elif name != _OURS:
            ratio = Comparison(ours, other).ratio
            yield Row(
                "peers",
                f"{case}: {name}",
                f"{span(ours).median:,.0f} of {span(other).median:,.0f} ns",
                f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
                f"<= {most[name]:.2f}",
                "OK" if ratio.median <= most[name] else "short",
            )


def _beside_reflector(case: str, ours: Sequence[float], other: Sequence[float]) -> Row:
    """The reflector takes a few of the whole nanoseconds that the kernel counts in: the median lies
    between two of them.
    """
    least = median_grouped(other)
    ratio = median(ours) / least
    return Row(
        "peers",
        case,
        f"{median(ours):,.0f} of {least:.1f} ns",
        f"{ratio:,.0f}",
    )

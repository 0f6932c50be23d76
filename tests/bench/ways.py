# SPDX-License-Identifier: Apache-2.0
"""One way through a Service against the straight way to the same pod, in turns."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from ebpflb.lab import Lab
from tests.bench import labs, load
from tests.bench.labs import Pair
from tests.bench.load import Client, Load
from tests.bench.options import Options
from tests.bench.report import Row, ratio_row
from tests.bench.rounds import Comparison, in_turns


@dataclass(frozen=True, slots=True)
class Way:
    """From a member to an address and port of a Service whose one pod, counted from 0, is `pod`."""

    case: str
    source: str
    pod: int
    frontend: Callable[[Lab], tuple[str, int]]
    target: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared: which client makes it, how it is read from the result, in which unit."""

    client: Client
    value: Callable[[Load], float]
    unit: str


CONNECT_RATE = Figure(Client.ASK, lambda result: result.connect_rate, "/s")
PUSH_RATE = Figure(Client.PUSH, lambda result: result.throughput, "MB/s")
PULL_RATE = Figure(Client.PULL, lambda result: result.throughput, "MB/s")


def compare(bench: str, pair: Pair, way: Way, figure: Figure, options: Options) -> Iterator[Row]:
    """A row for the way through the Service, and one for what the mere presence of ours costs."""
    with ExitStack() as servers:
        for lab in (pair.ours, pair.straight):
            servers.enter_context(load.serving(labs.pod(lab, way.pod), figure.client.server))

        def measure(lab: Lab, address: str, port: int) -> float:
            source = lab.member(way.source)
            return figure.value(load.run(source, figure.client, address, port, options.seconds))

        def straight(lab: Lab) -> float:
            return measure(lab, labs.pod(lab, way.pod).ipv4, load.PORT)

        found = in_turns(
            {
                "straight": lambda: straight(pair.straight),
                "ours": lambda: measure(pair.ours, *way.frontend(pair.ours)),
                "loaded": lambda: straight(pair.ours),
            },
            options.rounds,
        )
    through = Comparison(found["ours"], found["straight"])
    loaded = Comparison(found["loaded"], found["straight"])
    yield ratio_row(bench, way.case, through, figure.unit, way.target)
    yield ratio_row(bench, f"{way.case}: straight beside it", loaded, figure.unit, None)

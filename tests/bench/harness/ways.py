# SPDX-License-Identifier: Apache-2.0
"""A path through a Service compared with the direct path to the same pod, alternating.

Or the same path in both labs, when the other lab has its own Services.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ebpflb.lab import Lab
from tests.bench.harness import labs, load
from tests.bench.harness.labs import Pair
from tests.bench.harness.load import Client, Goal, Load
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row, ratio_row
from tests.bench.harness.rounds import Comparison, in_turns


@dataclass(frozen=True, slots=True)
class Way:
    """From a member to an address and port that lead to one pod, counted from 0.

    `frontend`: evaluated before each measurement. `target`: see ratio_row.
    """

    case: str
    source: str
    pod: int
    frontend: Callable[[Lab], Goal]
    target: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """What is compared: the client that measures it, how it is read from the result, and its
    unit. parallel: connections at a time.
    """

    client: Client
    value: Callable[[Load], float]
    unit: str
    parallel: int = load.PARALLEL


CONNECT_RATE = Figure(Client.ASK, lambda result: result.connect_rate, "/CPU s")
PUSH_RATE = Figure(Client.PUSH, lambda result: result.throughput, "MB/CPU s", load.STREAMS)
PULL_RATE = Figure(Client.PULL, lambda result: result.throughput, "MB/CPU s", load.STREAMS)


def compare(bench: str, pair: Pair, way: Way, figure: Figure, options: Options) -> Iterator[Row]:
    """A row for the path through the Service, and one for the cost of attached programs alone."""
    straight = labs.straight(way.pod)
    with _measuring((pair.ours, pair.other), way, figure, options) as measure:
        found = in_turns(
            {
                "straight": lambda: measure(pair.other, straight(pair.other)),
                "ours": lambda: measure(pair.ours, way.frontend(pair.ours)),
                "loaded": lambda: measure(pair.ours, straight(pair.ours)),
            },
            options.rounds,
        )
    through = Comparison(found["ours"], found["straight"])
    loaded = Comparison(found["loaded"], found["straight"])
    yield ratio_row(bench, way.case, through, figure.unit, way.target)
    yield ratio_row(bench, f"{way.case}: straight beside it", loaded, figure.unit, None)


def in_both(bench: str, pair: Pair, way: Way, figure: Figure, options: Options) -> Row:
    """The same path in both labs."""
    with _measuring((pair.ours, pair.other), way, figure, options) as measure:
        found = in_turns(
            {
                "other": lambda: measure(pair.other, way.frontend(pair.other)),
                "ours": lambda: measure(pair.ours, way.frontend(pair.ours)),
            },
            options.rounds,
        )
    compared = Comparison(found["ours"], found["other"])
    return ratio_row(bench, way.case, compared, figure.unit, way.target)


def switched(
    bench: str,
    lab: Lab,
    way: Way,
    figure: Figure,
    switch: Callable[[bool], None],
    options: Options,
) -> Row:
    """The same path in one lab with a feature enabled, compared with it disabled."""

    def measured(measure: Callable[[Lab, Goal], float], *, on: bool) -> float:
        switch(on)
        return measure(lab, way.frontend(lab))

    with _measuring((lab,), way, figure, options) as measure:
        found = in_turns(
            {
                "off": lambda: measured(measure, on=False),
                "on": lambda: measured(measure, on=True),
            },
            options.rounds,
        )
    compared = Comparison(found["on"], found["off"])
    return ratio_row(bench, way.case, compared, figure.unit, way.target)


@contextmanager
def _measuring(
    measured: Collection[Lab], way: Way, figure: Figure, options: Options
) -> Iterator[Callable[[Lab, Goal], float]]:
    """Have the pods of the labs serve; yields a function that measures once, from source to
    goal.
    """
    with ExitStack() as stack:
        servers = {
            lab.name: stack.enter_context(
                load.serving(labs.pod(lab, way.pod), figure.client.server)
            )
            for lab in measured
        }

        def measure(lab: Lab, goal: Goal) -> float:
            source, server = lab.member(way.source), servers[lab.name]
            ran = load.run(
                source, figure.client, goal, server, options.seconds, parallel=figure.parallel
            )
            return figure.value(ran)

        yield measure

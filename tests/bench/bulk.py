# SPDX-License-Identifier: Apache-2.0
"""Bytes over TCP from outside through a NodePort to a pod on that node, compared with the direct
path. With BIG TCP a segment may be longer than an IPv4 header can say.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from ebpflb.lab.offloads import big_tcp
from tests.bench.harness import labs, ways
from tests.bench.harness.labs import Pair
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

TARGET = 0.90


def run(options: Options) -> Iterator[Row]:
    """To the pod, and from it."""
    with labs.pair(services=1, targets=[0]) as pair:
        yield from _both_ways(pair, "", options)
        with ExitStack() as stack:
            for lab in (pair.ours, pair.other):
                stack.enter_context(big_tcp(lab))
            yield from _both_ways(pair, ", BIG TCP", options)


def _both_ways(pair: Pair, how: str, options: Options) -> Iterator[Row]:
    for case, figure in (("to the pod", ways.PUSH_RATE), ("from the pod", ways.PULL_RATE)):
        way = Way(f"{case}{how}", "client", 0, labs.node_port(0), TARGET)
        yield from ways.compare("bulk", pair, way, figure, options)

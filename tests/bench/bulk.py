# SPDX-License-Identifier: Apache-2.0
"""Bytes over TCP from outside through a NodePort to a pod on that node, compared with the direct
path.
"""

from collections.abc import Iterator

from tests.bench.harness import labs, ways
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

TARGET = 0.90


def run(options: Options) -> Iterator[Row]:
    """To the pod, and from it."""
    with labs.pair(services=1, targets=[0]) as pair:
        for case, figure in (("to the pod", ways.PUSH_RATE), ("from the pod", ways.PULL_RATE)):
            way = Way(case, "client", 0, labs.node_port(0), TARGET)
            yield from ways.compare("bulk", pair, way, figure, options)

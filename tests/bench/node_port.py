# SPDX-License-Identifier: Apache-2.0
"""New TCP connections from outside through a NodePort, against straight to the pod.

Both lead through a node as a router: the straight way through the pod's own, so that a pod on
another node than the NodePort's costs one hop more.
"""

from collections.abc import Iterator

from tests.bench import labs, ways
from tests.bench.options import Options
from tests.bench.report import Row
from tests.bench.ways import Way

NEAR_TARGET = 0.97
FAR_TARGET = 0.80


def run(options: Options) -> Iterator[Row]:
    """The NodePort of the first node, the pod there and on the other one."""
    with labs.pair(services=2, targets=[0, 1]) as pair:
        near = Way("pod on that node", "client", 0, labs.node_port(0), NEAR_TARGET)
        far = Way("pod on the other node", "client", 1, labs.node_port(1), FAR_TARGET)
        for way in (near, far):
            yield from ways.compare("nodeport", pair, way, ways.CONNECT_RATE, options)

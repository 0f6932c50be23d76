# SPDX-License-Identifier: Apache-2.0
"""New TCP connections through a ClusterIP, balanced at the socket, compared with direct ones.

From a pod and from a process of the host to a pod on the other node.
"""

from collections.abc import Iterator

from tests.bench.harness import labs, ways
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

SERVICES = 10_000
TARGET = 0.98

_FAR = 1


def run(options: Options) -> Iterator[Row]:
    """With one Service and with many; before that, both labs without agents."""
    with labs.bare_pair() as pair:
        straight = labs.straight(_FAR)
        way = Way("control: both without agents", "pod-1-1", _FAR, straight, target=None)
        yield ways.in_both("connect", pair, way, ways.CONNECT_RATE, options)
    for services in (1, options.scaled(SERVICES)):
        loaded = f"{services:,} Service{'s' * (services > 1)}"
        with labs.pair(services, targets=[_FAR]) as pair:
            for kind, source in (("pod", "pod-1-1"), ("host", labs.NODES[0])):
                way = _way(f"{kind} to ClusterIP, {loaded}", source)
                yield from ways.compare("connect", pair, way, ways.CONNECT_RATE, options)


def _way(case: str, source: str) -> Way:
    return Way(case, source, _FAR, labs.cluster_ip(_FAR), TARGET)

# SPDX-License-Identifier: Apache-2.0
"""How long a connection takes that is alone, as Services become more: ebpflb beside kube-proxy.

The question of the announcement of kube-proxy's nftables mode (Kubernetes blog, 28 February 2025):
the first packet of a connection looks its Service up. Here the connection carries a byte each way,
too. Each round takes another Service. A ratio below 1 is a shorter time.
"""

from collections.abc import Iterator

from tests.bench.harness import ways
from tests.bench.harness.load import Client
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Figure, Way
from tests.bench.proxies import against

SIZES = (1, 1_000, 10_000, 30_000)

_FAR = 1
_FIGURES = {
    "median": Figure(Client.ASK, lambda found: found.p50_us, "us", parallel=1),
    "99 %": Figure(Client.ASK, lambda found: found.p99_us, "us", parallel=1),
}
_SHARE_OF_ROUNDS = 2


def run(options: Options) -> Iterator[Row]:
    """From a pod to the ClusterIPs; kube-proxy in both of its modes."""
    fewer = options.fewer(_SHARE_OF_ROUNDS)
    for services in sorted({max(1, options.scaled(size)) for size in SIZES}):
        with against.prepared(services) as (pair, control, addresses):
            for mode in against.MODES:
                with against.kube_proxy_in(mode, pair, control, addresses):
                    for name, figure in _FIGURES.items():
                        case = f"{against.case_of(mode, services)}: {name}"
                        way = Way(case, "pod-1-1", _FAR, against.in_turn(addresses), target=None)
                        yield ways.in_both("first_packet", pair, way, figure, fewer)

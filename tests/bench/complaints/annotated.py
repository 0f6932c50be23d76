# SPDX-License-Identifier: Apache-2.0
"""What an annotation of a Service costs each new TCP connection, against the Service without it.

From a pod to a ClusterIP, and from outside to a NodePort, always to a pod on the other node.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from tests.bench.harness import labs, load, ways
from tests.bench.harness.load import Goal
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way
from tests.e2e.harness.cluster import Cluster, started

_FAR = 1
_ASKED: tuple[Mapping[str, str], ...] = (
    {"retry": "true"},
    {"weights": "app=web:1"},
    {"scheduler": "least-connections"},
    {"scheduler": "lowest-latency"},
    {"max-connections": "100000"},
    {"max-connections-per-client": "100000"},
    {"new-connections-per-client": "10000/s, burst 1000000"},
)


def run(options: Options) -> Iterator[Row]:
    """Two rows for each annotation."""
    with (
        TemporaryDirectory(prefix="ebpflb-bench-") as logs,
        labs.lab("bench-ours") as lab,
        started(lab, Path(logs)) as cluster,
    ):
        plain = _served(cluster, {})
        for asked in _ASKED:
            case = ", ".join(f"{name}: {value}" for name, value in asked.items())
            if options.only in case:
                yield from _rows(lab, case, plain, _served(cluster, asked), options)


def _served(cluster: Cluster, annotations: Mapping[str, str]) -> ServiceSpec:
    spec = cluster.new(annotations=annotations)
    return cluster.serve(spec, [labs.pod(cluster.lab, _FAR)], target_port=load.PORT)


def _rows(
    lab: Lab, case: str, plain: ServiceSpec, annotated: ServiceSpec, options: Options
) -> Iterator[Row]:
    chosen = [plain]

    def switch(on: bool) -> None:
        chosen[0] = annotated if on else plain

    def cluster_ip(lab: Lab) -> Goal:
        return lab.cluster_ip(chosen[0].number), chosen[0].port

    def node_port(lab: Lab) -> Goal:
        return lab.node(labs.NODES[0]).ipv4, chosen[0].node_port

    for who, source, goal in (("a pod", "pod-1-1", cluster_ip), ("outside", "client", node_port)):
        way = Way(f"{case}, from {who}", source, _FAR, goal, target=None)
        yield ways.switched("annotated", lab, way, ways.CONNECT_RATE, switch, options)

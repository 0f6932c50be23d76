# SPDX-License-Identifier: Apache-2.0
"""This checkout against another one (--other): new TCP connections and bulk, on every path."""

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from tests.bench.harness import labs, ways
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way

_FAR = 1
_PODS = (0, _FAR)


def run(other: Path, options: Options) -> Iterator[Row]:
    """Agents of both checkouts run at once, each in its own lab."""
    with (
        labs.bare_pair() as pair,
        labs.served(pair.ours, services=len(_PODS), targets=_PODS),
        chdir(other),
        labs.served(pair.other, services=len(_PODS), targets=_PODS),
    ):
        for case, source, pod, frontend in (
            ("pod to ClusterIP", "pod-1-1", _FAR, labs.cluster_ip(_FAR)),
            ("host to ClusterIP", labs.NODES[0], _FAR, labs.cluster_ip(_FAR)),
            ("NodePort, pod on that node", "client", 0, labs.node_port(0)),
            ("NodePort, pod on the other node", "client", _FAR, labs.node_port(_FAR)),
            ("straight, pod to pod", "pod-1-1", _FAR, labs.straight(_FAR)),
            ("straight, outside to pod", "client", 0, labs.straight(0)),
        ):
            if options.only not in case:
                continue
            way = Way(case, source, pod, frontend, target=None)
            yield ways.in_both("versions", pair, way, ways.CONNECT_RATE, options)
        for case, figure in (("to", ways.PUSH_RATE), ("from", ways.PULL_RATE)):
            name = f"bulk {case} a pod on the other node, NodePort"
            if options.only not in name:
                continue
            way = Way(name, "client", _FAR, labs.node_port(_FAR), target=None)
            yield ways.in_both("versions", pair, way, figure, options)

# SPDX-License-Identifier: Apache-2.0
"""Load on every way to a Service while something happens, without a connection that fails."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ebpflb.lab.load import LoadResult
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.traffic import LoadRun
from tests.e2e.cluster import Cluster, address_of

_RATE = 40.0
# Answers take milliseconds; only what is lost, or a machine at its limits, takes seconds.
_PATIENCE = 5.0
_NEW: dict[str, Any] = {"rate": _RATE, "timeout": _PATIENCE, "workers": 8}
# So many that backends here and elsewhere are among them.
_HELD: dict[str, Any] = {
    "exchanges": 0,
    "interval": 0.05,
    "count": 12,
    "workers": 12,
    "timeout": _PATIENCE,
}

Results = dict[str, LoadResult]


@contextmanager
def none_fails(cluster: Cluster, spec: ServiceSpec, *, held: bool = False) -> Iterator[Results]:
    """New connections all the time, from pod, host and outside, TCP and UDP, every family.

    held: and TCP connections through the NodePort that stay, with exchanges all the time; their
    backends must stay too. The results are there when the block has ended.
    """
    results: Results = {}
    with ExitStack() as stack:
        running = dict(_start(cluster, spec, stack, held=held))
        yield results
        results.update({way: load.stop() for way, load in running.items()})
    failed = {way: each.errors for way, each in results.items() if each.failed or not each.ok}
    assert failed == {}


def _start(
    cluster: Cluster, spec: ServiceSpec, stack: ExitStack, *, held: bool
) -> Iterator[tuple[str, LoadRun]]:
    lab = cluster.lab
    node, pod, client = lab.node("node1"), lab.pod("pod-1-1"), lab.client
    for version in cluster.versions:
        service = (lab.cluster_ip(spec.number, version), spec.port)
        outside = (address_of(node, version), spec.node_port)
        ways = [(pod, service, "tcp"), (pod, service, "udp"), (node, service, "tcp")]
        for source, place, protocol in [*ways, (client, outside, "tcp"), (client, outside, "udp")]:
            load = source.start_load(*place, protocol=protocol, **_NEW)
            yield f"{source.name}, {protocol}{version}", stack.enter_context(load)
        if held:
            load = client.start_load(*outside, **_HELD)
            yield f"held connections, IPv{version}", stack.enter_context(load)

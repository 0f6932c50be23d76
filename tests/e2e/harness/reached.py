# SPDX-License-Identifier: Apache-2.0
"""Which pods reply for a Service on all its paths at once, and additional servers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ebpflb.lab import Member, echo
from ebpflb.lab.ask import enough
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    SILENCE_SECONDS,
    SILENT,
    Attempt,
    fate,
    others,
    results,
)
from tests.e2e.harness.waiting import wait_until

_SEVERAL = 5

Objects = list[dict[str, Any]]
Place = tuple[str, int]


def ways(cluster: Cluster, spec: ServiceSpec) -> Iterator[tuple[Member, Place]]:
    """From pod and host to ClusterIPs, from outside to NodePorts and load-balancer IPs."""
    lab = cluster.lab
    for version in cluster.versions:
        for name in ("pod-1-1", "node2"):
            yield lab.member(name), (lab.cluster_ip(spec.number, version), spec.port)
        for node in lab.nodes if spec.node_port else ():
            yield lab.client, (address_of(node, version), spec.node_port)
        if spec.kind == "LoadBalancer":
            yield lab.client, (lab.ingress_ip(spec.number, version), spec.port)


def assert_reached(
    cluster: Cluster, spec: ServiceSpec, *servers: str, protocols: tuple[str, ...] = PROTOCOLS
) -> None:
    """Exactly these reply, on every path."""
    times = max(_SEVERAL, enough(len(servers)))
    attempts = _attempts(cluster, spec, protocols)
    assert others(results(attempts, times=times), *servers) == {}


def assert_refused(
    cluster: Cluster, spec: ServiceSpec, protocols: tuple[str, ...] = PROTOCOLS
) -> None:
    """No pod replies, and every client gets an error."""
    assert others(results(_attempts(cluster, spec, protocols)), REFUSED) == {}


def is_gone(cluster: Cluster, spec: ServiceSpec) -> bool:
    """Whether its ClusterIPs and load-balancer IPs are unused, and its NodePorts are the host's.

    The client first drops cached redirects of a node that only forwards.
    """
    attempts = _attempts(cluster, spec, PROTOCOLS)
    at_nodes = [each for each in attempts if each.port == spec.node_port]
    elsewhere = [each for each in attempts if each.port != spec.node_port]
    try:
        return not (
            others(results(at_nodes), REFUSED)
            or others(results(elsewhere, seconds=SILENCE_SECONDS), SILENT)
        )
    finally:
        for version in cluster.versions:
            cluster.lab.client.exec(["ip", f"-{version}", "route", "flush", "cache"])


def _attempts(cluster: Cluster, spec: ServiceSpec, protocols: tuple[str, ...]) -> list[Attempt]:
    return [
        Attempt(member, *place, protocol)
        for member, place in ways(cluster, spec)
        for protocol in protocols
    ]


def slices_of(objects: Objects) -> Objects:
    """The slices of a Service's objects."""
    return [each for each in objects if each["kind"] == "EndpointSlice"]


@contextmanager
def server(member: Member, name: str, port: int) -> Iterator[None]:
    """A server as in the pods, on another port or in the host's network."""
    script = [sys.executable, "-I", "-S", str(Path(echo.__file__))]
    with member.popen([*script, "--pod", name, "--port", str(port)]) as process:
        try:
            for place in product(member.addresses, [port], PROTOCOLS):
                wait_until(partial(_answers, name, member, place), f"{name} answers")
            yield
        finally:
            process.terminate()


def _answers(name: str, member: Member, place: tuple[str, int, str]) -> bool:
    return fate(member, *place, SILENCE_SECONDS) == name

# SPDX-License-Identifier: Apache-2.0
"""Traffic on every path to a Service, and one Service for each fault that metrics show."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from ebpflb.lab import Lab, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.sockets import connected, exchange

_PORT = 80
_TAKEN = 10256  # By the agent itself.
_IN_FORCE_SECONDS = 0.7
_NOT_READY = {"ready": False, "serving": False, "terminating": False}
_NOBODY = ["203.0.113.7/32", "2001:db8:113::7/128"]


@contextmanager
def traffic_and_trouble(cluster: Cluster) -> Iterator[ServiceSpec]:
    """Both, until the end of the block; yields the Service without faults."""
    lab = cluster.lab
    limited = cluster.new(annotations={"max-connections": "1000000"})
    good = cluster.serve(limited, lab.pods, wait=False)
    bad = list(_bad_services(cluster))
    for node in lab.nodes:
        (node.manifests / "broken.yaml").write_text("kind: Service\nmetadata: []\n")
    with ExitStack() as stack:
        stack.callback(lab.remove_manifests, "broken.yaml")
        for load in [*_to_good(lab, good), *(load for spec in bad for load in _to_bad(lab, spec))]:
            source, address, port, options = load
            stack.enter_context(source.start_load(address, port, workers=8, **options))
        stack.enter_context(_changes(cluster))
        yield good


@contextmanager
def _changes(cluster: Cluster) -> Iterator[None]:
    """Repeatedly remove the pod to which a UDP socket of the node is connected."""
    ended = threading.Event()
    changing = threading.Thread(target=_change, args=(cluster, ended))
    changing.start()
    try:
        yield
    finally:
        ended.set()
        changing.join()


def _change(cluster: Cluster, ended: threading.Event) -> None:
    lab = cluster.lab
    spec = cluster.new("ClusterIP")
    place = (lab.cluster_ip(spec.number, 4), _PORT)
    for pod in itertools.cycle(lab.pods):
        cluster.serve(spec, [pod], wait=False)
        ended.wait(_IN_FORCE_SECONDS)
        with suppress(OSError), connected(lab.node("node1"), *place, "udp") as one:
            exchange(one)
            cluster.serve(spec, wait=False)
            ended.wait(_IN_FORCE_SECONDS)
        if ended.is_set():
            return


_Load = tuple[Member, str, int, dict[str, Any]]


def _bad_services(cluster: Cluster) -> Iterator[ServiceSpec]:
    """None ready, dead ones, for no source, none on node1, for one pod only, an address twice."""
    lab = cluster.lab
    there = lab.pods_on("node2")
    yield _unready(cluster)
    yield cluster.serve(cluster.new(), lab.pods, target_port=9, wait=False)
    limited = cluster.new("LoadBalancer", loadBalancerSourceRanges=_NOBODY)
    yield cluster.serve(limited, lab.pods, wait=False)
    local: dict[str, Any] = {"externalTrafficPolicy": "Local", "healthCheckNodePort": _TAKEN}
    yield cluster.serve(cluster.new("LoadBalancer", **local), there, wait=False)
    yield cluster.serve(cluster.new(sessionAffinity="ClientIP"), lab.pods, wait=False)
    first = cluster.serve(cluster.new("ClusterIP"), lab.pods, wait=False)
    second = replace(first, name=f"{first.name}-again")
    cluster.serve(second, lab.pods, wait=False)


def _unready(cluster: Cluster) -> ServiceSpec:
    spec = cluster.new()
    objects = cluster.lab.service(spec, cluster.lab.pods)
    for endpoint in (each for item in objects for each in item.get("endpoints", ())):
        endpoint["conditions"] = _NOT_READY
    cluster.write(spec, objects, wait=False)
    return spec


def _to_good(lab: Lab, spec: ServiceSpec) -> Iterator[_Load]:
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    for version in (4, 6):
        service = lab.cluster_ip(spec.number, version)
        for protocol in ("tcp", "udp"):
            new = {"protocol": protocol, "rate": 8.0}
            yield pod, service, _PORT, new
            yield node, service, _PORT, new
            yield lab.client, address_of(node, version), spec.node_port, new
    held = {"exchanges": 0, "interval": 0.2, "count": 4}
    yield lab.pod("pod-2-1"), lab.cluster_ip(spec.number, 4), _PORT, held


def _to_bad(lab: Lab, spec: ServiceSpec) -> Iterator[_Load]:
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    few = {"rate": 4.0, "timeout": 0.5}
    yield pod, lab.cluster_ip(spec.number, 4), _PORT, few
    if spec.node_port:
        yield lab.client, address_of(node, 6), spec.node_port, few
    if spec.kind == "LoadBalancer":
        yield pod, lab.ingress_ip(spec.number, 6), _PORT, few
        yield lab.client, lab.ingress_ip(spec.number, 4), _PORT, few

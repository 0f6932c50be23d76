# SPDX-License-Identifier: Apache-2.0
"""Pods whose connections no socket hook sees, like those of virtual machines: only tc serves them.

The sockets are created inside the pod's namespace, but outside the cgroup with the hooks.
"""

from typing import Any

import pytest

from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PROTOCOLS
from tests.e2e.harness.sockets import exchange, send_and_hear
from tests.e2e.steps.outside_cgroup import outside, peers

PORT = 80
_TIMES = 8

VERSIONS = pytest.mark.parametrize("version", [4, 6])
EACH = pytest.mark.parametrize("protocol", PROTOCOLS)


def frontends(cluster: Cluster, version: int, **spec: Any) -> list[tuple[str, int]]:
    """Every kind of address of a Service with a pod of the other node."""
    lab = cluster.lab
    made = cluster.serve(cluster.new("LoadBalancer", **spec), [lab.pod("pod-2-1")])
    return [
        (lab.cluster_ip(made.number, version), PORT),
        (lab.ingress_ip(made.number, version), PORT),
        *((address_of(node, version), made.node_port) for node in lab.nodes),
    ]


@VERSIONS
@EACH
def test_every_frontend_is_reached_and_is_the_peer(cluster, lab, version, protocol):
    pod = lab.pod("pod-1-1")
    for place in frontends(cluster, version):
        with outside(pod, version, protocol) as made:
            made.connect(place)
            assert exchange(made) == "pod-2-1"
            assert made.getpeername()[:2] == place
            assert protocol == "udp" or place[0] in peers(pod)


@VERSIONS
def test_unconnected_datagrams_are_answered_by_the_frontend(cluster, lab, version):
    for place in frontends(cluster, version):
        with outside(lab.pod("pod-1-1"), version, "udp") as made:
            assert send_and_hear(made, *place) == "pod-2-1"


@VERSIONS
@EACH
def test_a_pod_reaches_itself(cluster, lab, version, protocol):
    pod = lab.pod("pod-1-1")
    spec = cluster.serve(cluster.new(), [pod])
    with outside(pod, version, protocol) as made:
        made.connect((lab.cluster_ip(spec.number, version), PORT))
        assert exchange(made) == pod.name


@VERSIONS
@EACH
def test_session_affinity_holds(cluster, lab, version, protocol):
    spec = cluster.serve(cluster.new(sessionAffinity="ClientIP"), lab.pods)
    seen = set()
    for _ in range(_TIMES):
        with outside(lab.pod("pod-1-1"), version, protocol) as made:
            made.connect((lab.cluster_ip(spec.number, version), PORT))
            seen.add(exchange(made))
    assert len(seen) == 1

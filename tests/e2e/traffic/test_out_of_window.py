# SPDX-License-Identifier: Apache-2.0
"""A server that sends TCP packets far out of the window gets no reset, and its connection survives.

kube-proxy once let such packets bypass NAT: the client saw an unknown sender and reset the server's
connection.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import inject
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.sockets import connected, exchange

PORT = 80


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("backend", ["pod-1-1", "pod-2-1"])
@pytest.mark.parametrize("way", ["NodePort from outside", "ClusterIP from outside", "from a pod"])
def test_packets_out_of_the_window_cause_no_reset(cluster, lab, client, way, backend, version):
    pod = lab.pod(backend)
    spec = cluster.serve(cluster.new(), [pod])
    place = (lab.cluster_ip(spec.number, version), PORT)
    if way == "NodePort from outside":
        place = (address_of(lab.node("node1"), version), spec.node_port)
    source = lab.pod("pod-1-2") if way == "from a pod" else client
    with connected(source, *place) as held:
        seen = json.loads(exchange(held, b"who"))
        ends = ("local_address", "local_port", "client_address", "client_port")
        arguments = [str(version), *(str(seen[each]) for each in ends)]
        script = str(Path(inject.__file__))
        done = pod.exec([sys.executable, "-I", "-S", script, *arguments])
        resets, acknowledged = map(int, done.stdout.split())
        assert resets == 0
        assert acknowledged > 0, "none of them reached the client"
        assert [exchange(held) for _ in range(5)] == [backend] * 5

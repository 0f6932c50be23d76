# SPDX-License-Identifier: Apache-2.0
"""NodePorts on 127.0.0.1 and ::1: for processes of the node, where both options allow it."""

import pytest

from tests.e2e.harness.cluster import started
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, fate, names, pods_at
from tests.e2e.harness.sockets import opened, send_and_hear, version_of

LOCALHOST = "127.0.0.1"
LOOPBACK = (LOCALHOST, "::1")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_localhost_has_node_ports_for_the_host_alone(cluster, lab, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    for address in (LOCALHOST, "127.9.9.9", "0.0.0.0"):
        place = (address, spec.node_port)
        assert pods_at(lab.node("node1"), *place, protocol) == names(lab.pods)
        assert fate(lab.pod("pod-1-1"), *place, protocol) == REFUSED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_localhost_of_ipv6_has_none_by_default(cluster, lab, protocol):
    spec = cluster.serve(cluster.new(), lab.pods)
    for address in ("::1", "::"):
        assert fate(lab.node("node1"), address, spec.node_port, protocol) == REFUSED


@pytest.mark.parametrize(
    ("options", "is_served"),
    [
        pytest.param(["--localhost-nodeports=false"], False, id="switched off"),
        pytest.param(["--nodeport-addresses=primary"], False, id="primary"),
        pytest.param(["--nodeport-addresses=192.0.2.0/24"], False, id="elsewhere"),
        pytest.param(["--nodeport-addresses=primary,localhost"], True, id="named"),
        pytest.param(["--nodeport-addresses=fd00::/8"], True, id="the other family"),
        pytest.param(
            ["--iptables-localhost-nodeports=false", "--nodeport-addresses=127.0.0.0/8"],
            False,
            id="named and switched off",
        ),
    ],
)
def test_localhost_node_ports_need_both_options(own_lab, tmp_path, options, is_served):
    with started(own_lab, tmp_path, options, ["node1"]) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        for protocol in PROTOCOLS:
            found = fate(own_lab.node("node1"), LOCALHOST, spec.node_port, protocol)
            assert found in (names(own_lab.pods) if is_served else {REFUSED})


def test_localhost_of_ipv6_has_node_ports_where_it_is_named(own_lab, tmp_path):
    with started(own_lab, tmp_path, ["--nodeport-addresses=primary,localhost"], ["node1"]) as it:
        port, node = it.serve(it.new(), own_lab.pods).node_port, own_lab.node("node1")
        for protocol in PROTOCOLS:
            for address in ("::1", "::"):
                assert pods_at(node, address, port, protocol) == names(own_lab.pods)
            assert fate(own_lab.pod("pod-1-1"), "::1", port, protocol) == REFUSED
        for address in LOOPBACK:
            with opened(node, version_of(address), "udp") as unconnected:
                assert send_and_hear(unconnected, address, port) in names(own_lab.pods)

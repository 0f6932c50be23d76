# SPDX-License-Identifier: Apache-2.0
"""Backends that are processes of the nodes themselves."""

from collections.abc import Iterator

import pytest

from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PROTOCOLS, fate, is_silent, pods_at
from tests.e2e.harness.reached import assert_reached, server, slices_of

SERVERS = {"node1": "host-1", "node2": "host-2"}


@pytest.fixture(scope="module")
def hosts(shared) -> Iterator[None]:
    """A server in the network of each node, on the pods' port."""
    first, second = shared.lab.nodes
    port = shared.lab.config.port
    with server(first, SERVERS["node1"], port), server(second, SERVERS["node2"], port):
        yield


def serve_from(cluster: Cluster, *nodes: str, **spec):
    """A Service of the servers on these nodes."""
    lab = cluster.lab
    made = cluster.new(**spec)
    objects = lab.service(made, [lab.pods_on(name)[0] for name in nodes])
    for piece in slices_of(objects):
        version = int(piece["addressType"][-1])
        for endpoint in piece["endpoints"]:
            endpoint["addresses"] = [address_of(lab.node(endpoint["nodeName"]), version)]
    cluster.write(made, objects)
    return made


def test_servers_of_hosts_serve_everybody(cluster, lab, hosts):
    spec = serve_from(cluster, "node1", "node2")
    assert_reached(cluster, spec, *SERVERS.values())
    for protocol in PROTOCOLS:
        for version in cluster.versions:
            place = (address_of(lab.node("node1"), version), spec.node_port)
            for name in ("pod-1-1", "pod-2-1", "node1", "node2"):
                assert pods_at(lab.member(name), *place, protocol) == set(SERVERS.values()), name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_of_the_host_is_local_on_its_node_alone(cluster, lab, hosts, protocol):
    spec = serve_from(cluster, "node1", internalTrafficPolicy="Local")
    for place in cluster.cluster_ips(spec):
        for name in ("pod-1-1", "node1"):
            assert fate(lab.member(name), place, spec.port, protocol) == SERVERS["node1"], name
        for name in ("pod-2-1", "node2"):
            assert is_silent(lab.member(name), place, spec.port, protocol), name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_of_the_host_reaches_itself(cluster, lab, hosts, protocol):
    spec = serve_from(cluster, "node1")
    places = [(address, spec.port) for address in cluster.cluster_ips(spec)]
    places += [(address, spec.node_port) for address in lab.node("node1").addresses]
    for place in places:
        assert fate(lab.node("node1"), *place, protocol) == SERVERS["node1"], place

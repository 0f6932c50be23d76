# SPDX-License-Identifier: Apache-2.0
"""Devices that are renamed, lose their address or get a tiny MTU while Service flows use them."""

from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from ebpflb.lab import Lab, LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, is_hooked
from tests.e2e.harness.questions import PROTOCOLS, fate
from tests.e2e.harness.sockets import connected, echo, exchange
from tests.e2e.harness.waiting import wait_until, wait_until_equal

HERE, REMOTE = "pod-1-1", "pod-2-1"
BODY = bytes(range(256)) * 100
_SMALL = 576


@pytest.fixture(scope="module")
def cluster(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("devices")
    with started(own_lab, logs, nodes=["node1"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node(own_lab: Lab) -> LabNode:
    return own_lab.node("node1")


@pytest.fixture(scope="module")
def specs(cluster: Cluster, own_lab: Lab) -> Mapping[str, ServiceSpec]:
    """Services of a pod on the node, and of one on another node."""
    return {name: cluster.serve(cluster.new(), [own_lab.pod(name)]) for name in (HERE, REMOTE)}


@pytest.mark.parametrize(
    ("device", "name", "version"), [("eth0", "uplink0", 4), ("veth-1-1", "pod0", 6)]
)
def test_a_device_may_be_renamed(own_lab, node, specs, device, name, version):
    own = address_of(node, version)
    flows = {pod: connected(own_lab.client, own, specs[pod].node_port) for pod in specs}
    with flows[HERE] as here, flows[REMOTE] as remote:
        for before, after in ((device, name), (name, device)):
            node.exec(["ip", "link", "set", before, "name", after])
            assert (exchange(here), exchange(remote)) == (HERE, REMOTE)
            wait_until(partial(is_hooked, node, after), "its new name is known")
            for pod, spec in specs.items():
                for protocol in PROTOCOLS:
                    assert fate(own_lab.client, own, spec.node_port, protocol) == pod


@pytest.fixture
def small(own_lab: Lab, node: LabNode) -> Iterator[None]:
    """The uplink gets a small MTU; IPv6 configuration that the kernel removes is restored at the
    end.
    """
    (ranges,) = (each for each in own_lab.layout.ranges if each.version == 6)
    routes = node.exec(["ip", "-6", "route"]).stdout.splitlines()
    node.exec(["ip", "link", "set", "eth0", "mtu", str(_SMALL)])
    yield
    node.exec(["ip", "link", "set", "eth0", "mtu", "1500"])
    place = f"{node.ipv6}/{ranges.underlay().prefixlen}"
    node.exec(["ip", "addr", "add", place, "dev", "eth0", "nodad"])
    for route in routes:
        if " via " in route:
            node.exec(["ip", "-6", "route", "replace", *route.split(" dev ")[0].split()])


@pytest.mark.usefixtures("small")
def test_a_tiny_mtu_leaves_ipv4_as_it_is_and_ipv6_is_reported(own_lab, node, specs):
    for pod, spec in specs.items():
        with connected(own_lab.client, node.ipv4, spec.node_port) as bulk:
            assert echo(bulk, BODY) == BODY, pod
    assert "its MTU of 576 is less than IPv6 needs" in ebpflb(node, "doctor").stdout


def test_ipv6_is_served_again(own_lab, node, specs):
    """After the test above, which restored its addresses."""
    for pod, spec in specs.items():
        wait_until_equal(partial(fate, own_lab.client, node.ipv6, spec.node_port), pod)

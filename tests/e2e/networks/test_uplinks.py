# SPDX-License-Identifier: Apache-2.0
"""A node with two uplinks: replies of its pods leave by the route that the node has for them."""

from collections.abc import Callable, Iterator

import pytest

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import is_hooked
from tests.e2e.harness.questions import PROTOCOLS, fate
from tests.e2e.harness.sockets import connected, exchange, wait_answered
from tests.e2e.harness.waiting import wait_until
from tests.e2e.networks.uplinks import FIRST, NODE, SECOND, Uplinks

POD, REMOTE = "pod-1-1", "pod-2-1"
WAYS = pytest.mark.parametrize(
    ("version", "protocol"), [(version, protocol) for version in (4, 6) for protocol in PROTOCOLS]
)


@pytest.fixture(scope="module")
def links(own_lab: Lab) -> Uplinks:
    """Created before the agent starts, which finds them."""
    return Uplinks(own_lab)


@pytest.fixture(scope="module")
def cluster(own_lab, links, tmp_path_factory) -> Iterator[Cluster]:
    options = ["--host-devices", f"eth0,{FIRST},{SECOND}"]
    with started(own_lab, tmp_path_factory.mktemp("uplinks"), options, ["node1"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def specs(cluster: Cluster, own_lab: Lab) -> dict[str, ServiceSpec]:
    """NodePorts of a pod on the node, and of one on another node."""
    return {name: cluster.serve(cluster.new(), [own_lab.pod(name)]) for name in (POD, REMOTE)}


@pytest.fixture
def spec(specs: dict[str, ServiceSpec]) -> ServiceSpec:
    """The Service of the pod on the node."""
    return specs[POD]


@pytest.fixture
def uplinks(links: Uplinks, cluster: Cluster, own_lab: Lab) -> Uplinks:
    """Both sides send by the first link."""
    if links.reset():
        wait_until(lambda: is_hooked(own_lab.node("node1"), FIRST), "the new link is served")
    return links


def withdraw(uplinks: Uplinks) -> None:
    """The link stays up, but the routes change to the other one."""
    uplinks.node_sends_by(SECOND)


def fail(uplinks: Uplinks) -> None:
    """The link goes down."""
    uplinks.take_down(FIRST)
    uplinks.node_sends_by(SECOND)


def vanish(uplinks: Uplinks) -> None:
    """The link is removed."""
    uplinks.remove(FIRST)
    uplinks.node_sends_by(SECOND)


@WAYS
@pytest.mark.parametrize("happens", [withdraw, fail, vanish])
def test_a_flow_goes_on_by_the_other_uplink(
    uplinks, spec, own_lab, happens: Callable[[Uplinks], None], version, protocol
):
    with connected(own_lab.client, NODE[version], spec.node_port, protocol) as flow:
        assert exchange(flow) == POD
        happens(uplinks)
        uplinks.client_sends_by(SECOND)
        with uplinks.replies(version) as seen:
            assert exchange(flow) == POD
        assert seen == {SECOND}
    assert fate(own_lab.client, NODE[version], spec.node_port, protocol) == POD


@WAYS
def test_replies_may_take_another_uplink_than_requests(uplinks, spec, own_lab, version, protocol):
    uplinks.node_sends_by(SECOND)
    with uplinks.replies(version) as seen:
        assert fate(own_lab.client, NODE[version], spec.node_port, protocol) == POD
    assert seen == {SECOND}


@WAYS
@pytest.mark.parametrize("pod", [POD, REMOTE])
def test_replies_obey_rules_for_the_address_they_leave_with(
    uplinks, specs, own_lab, pod, version, protocol
):
    spec = specs[pod]
    uplinks.node_sends_by(SECOND)
    with uplinks.source_routed(FIRST), uplinks.replies(version) as seen:
        assert fate(own_lab.client, NODE[version], spec.node_port, protocol) == pod
    assert seen == {FIRST}


@pytest.mark.parametrize("version", [4, 6])
def test_a_flow_finds_the_address_that_the_node_masquerades_with_now(
    uplinks, specs, own_lab, version
):
    port = specs[REMOTE].node_port
    with (
        connected(own_lab.client, NODE[version], port, "udp") as datagrams,
        connected(own_lab.client, NODE[version], port) as connection,
    ):
        assert exchange(datagrams) == exchange(connection) == REMOTE
        with uplinks.renumbered(version):
            own_lab.node("node2").exec(["ip", "neigh", "flush", "all"])
            wait_answered(datagrams, REMOTE)
            for protocol in PROTOCOLS:
                assert fate(own_lab.client, NODE[version], port, protocol) == REMOTE
        assert exchange(datagrams) == exchange(connection) == REMOTE

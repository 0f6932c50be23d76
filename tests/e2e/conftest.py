# SPDX-License-Identifier: Apache-2.0
"""Labs with agents: one for each kind of network, shared by all tests, and one for each module."""

from collections.abc import Iterator

import pytest

from ebpflb.lab import Cni, Lab, LabConfig, Member, Stack
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.mode import present_mode

# A single family behaves the same on every kind of pod network.
ALONE = [(Cni.PTP, Stack.IPV4), (Cni.VXLAN, Stack.IPV6)]
NETWORKS = [*((cni, Stack.DUAL) for cni in Cni), *ALONE]
WITH_IPV4 = [network for network in NETWORKS if network[1] is not Stack.IPV6]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that do not apply in the current mode."""
    mode = present_mode()
    other = [
        item
        for item in items
        for marker in item.iter_markers("only_in")
        if any(getattr(mode, name) != value for name, value in marker.kwargs.items())
    ]
    if other:
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if item not in other]


def network_id(network: tuple[Cni, Stack]) -> str:
    return f"{network[0]}-{network[1]}"


@pytest.fixture(scope="session", params=NETWORKS, ids=network_id)
def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two nodes with three pods each, and agents, on each kind of network in turn."""
    cni, family = request.param
    with (
        built(LabConfig(lab_name(), cni=cni, family=family)) as lab,
        started(lab, tmp_path_factory.mktemp(f"{cni}-{family}")) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with two pods each, both families, and an agent on each node."""
    with (
        built(LabConfig(lab_name(), pods=2)) as lab,
        started(lab, tmp_path_factory.mktemp("shared")) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The shared lab, without the Services of other tests."""
    yield shared
    assert all(agent.is_running() for agent in shared.agents.values()), "an agent has exited"
    shared.clear()
    wait_in_force(shared.nodes)


@pytest.fixture(scope="module")
def own_lab() -> Iterator[Lab]:
    """Two nodes with two pods each and both families, for one module; no agents."""
    with built(LabConfig(lab_name(), pods=2)) as lab:
        yield lab


@pytest.fixture
def lab(cluster: Cluster) -> Lab:
    """The lab of `cluster`."""
    return cluster.lab


@pytest.fixture
def client(lab: Lab) -> Iterator[Member]:
    """The external client, with routes to the ClusterIPs by node1."""
    for ranges in lab.layout.ranges:
        via = address_of(lab.node("node1"), ranges.version)
        lab.client.exec(["ip", "route", "add", str(ranges.services()), "via", via])
    yield lab.client
    for ranges in lab.layout.ranges:
        lab.client.exec(["ip", "route", "del", str(ranges.services())])
